//! Which units have used a value, where each use is of the whole value.
//!
//! Most values are used like that. They need no [`Pieces`](crate::compile::pieces::Pieces), which take more than a kilobyte for each value.

use crate::ir::program::ValueId;

/// The uses of values so far.
pub(super) struct WholeUses {
    values: Vec<Last>,
    /// All reads, each with the one before it: together they are a linked list for each value.
    reads: Vec<Read>,
}

/// The last uses of a value.
#[derive(Copy, Clone, Default)]
struct Last {
    /// The unit that wrote it last.
    write: Option<usize>,
    /// The last read since then, as an index into the reads.
    read: Option<usize>,
}

/// A read of a value.
struct Read {
    unit: usize,
    /// The read of the same value before this one, if there is one since the last write.
    before: Option<usize>,
}

impl WholeUses {
    /// No uses yet of so many values.
    pub(super) fn new(values: usize) -> WholeUses {
        WholeUses { values: vec![Last::default(); values], reads: Vec::new() }
    }

    /// Adds a read, and to `earlier` the unit that it must come after: the one that wrote the value last.
    pub(super) fn read(&mut self, value: ValueId, unit: usize, earlier: &mut Vec<usize>) {
        let last = &mut self.values[value.0];
        earlier.extend(last.write);
        let before = last.read.replace(self.reads.len());
        self.reads.push(Read { unit, before });
    }

    /// Adds a write, and to `earlier` the units that it must come after: the one that wrote the value last, and those that have read it since. A unit that
    /// comes after this one comes after those, too.
    pub(super) fn write(&mut self, value: ValueId, unit: usize, earlier: &mut Vec<usize>) {
        let Last { write, mut read } =
            std::mem::replace(&mut self.values[value.0], Last { write: Some(unit), read: None });
        earlier.extend(write);
        while let Some(Read { unit, before }) = read.map(|read| &self.reads[read]) {
            earlier.push(*unit);
            read = *before;
        }
    }
}

//! Races: two threads access the same byte, one of them writes, and no barrier of their block lies between the accesses.
//!
//! For each word of four bytes the last writer and a reader are kept, each with the number of barriers that its block had passed; for each byte once an access has met less than a
//! word. Threads of different blocks are never ordered. That is the idea of FastTrack (Flanagan and Freund, 2009), whose clocks are single numbers here, since a barrier orders all
//! threads of a block. Atomic and volatile accesses are made to race and are not looked at.

use std::num::NonZeroU64;
use std::ops::Range;

/// The bits of an [`Actor`] for the barriers that its block has passed; those above are one more than the thread, and the upper 32 are the block.
const INTERVAL: u32 = 21;

/// A thread of a launch between two barriers: the block, the thread in it by its number, at most 1024, and the barriers that its block has passed. In 64 bits, as a
/// launch over megabytes keeps millions of them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Actor(NonZeroU64);

impl Actor {
    pub(super) fn new(block: u32, thread: u32, interval: u32) -> Actor {
        let after = u64::from(thread + 1) << INTERVAL | u64::from(interval) & ((1 << INTERVAL) - 1);
        Actor(NonZeroU64::new(u64::from(block) << 32 | after).unwrap_or(NonZeroU64::MIN))
    }

    pub(super) fn block(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    pub(super) fn thread(self) -> u32 {
        (self.0.get() as u32 >> INTERVAL) - 1
    }

    /// Did this access happen before one of `later`?
    fn is_before(self, later: Actor) -> bool {
        let (one, other) = (self.0.get(), later.0.get());
        let is_same_thread = one >> INTERVAL == other >> INTERVAL;
        let barriers = |bits: u64| bits & ((1 << INTERVAL) - 1);
        is_same_thread || (one >> 32 == other >> 32 && barriers(one) < barriers(other))
    }
}

#[derive(Copy, Clone, Default)]
struct Cell {
    writer: Option<Actor>,
    /// The last that wrote the value which was there already.
    same: Option<Actor>,
    /// A reader that nothing has ordered before a later one, and another if there are several.
    readers: [Option<Actor>; 2],
}

/// The last accesses to each byte of a memory.
pub(super) struct Races {
    cells: Vec<Cell>,
    /// Bytes of a cell, as a power of two: 2 or 0.
    shift: u32,
}

/// Another access to the same byte.
pub(super) struct Conflict {
    pub(super) other: Actor,
    pub(super) writes: bool,
    /// The first byte.
    pub(super) at: usize,
}

impl Races {
    /// Of so many bytes from an address on.
    pub(super) fn new(address: u64, bytes: usize) -> Races {
        let shift = if address.is_multiple_of(4) { 2 } else { 0 };
        Races { cells: vec![Cell::default(); bytes.div_ceil(1 << shift)], shift }
    }

    /// The cells of these bytes.
    fn cells(&mut self, bytes: &Range<usize>) -> Range<usize> {
        if self.shift > 0 && (bytes.start | bytes.end) & 3 != 0 {
            self.cells = self.cells.iter().flat_map(|&cell| [cell; 4]).collect();
            self.shift = 0;
        }
        bytes.start >> self.shift..bytes.end >> self.shift
    }

    /// Notes a read of these bytes.
    pub(super) fn read(&mut self, bytes: &Range<usize>, actor: Actor) -> Result<(), Conflict> {
        for number in self.cells(bytes) {
            let cell = &mut self.cells[number];
            if let Some(other) = cell.writer.filter(|writer| !writer.is_before(actor)) {
                return Err(Conflict { other, writes: true, at: number << self.shift });
            }
            // Readers before this one need not be kept: what is ordered after this one is ordered after them.
            match &mut cell.readers {
                [first, _] if first.is_none_or(|first| first.is_before(actor)) => *first = Some(actor),
                [_, second] if second.is_none_or(|second| second.is_before(actor)) => *second = Some(actor),
                // Readers of two blocks are enough: no write is ordered after both.
                [Some(first), second] if first.block() != actor.block() => *second = Some(actor),
                // Two threads of a block are enough while this is the only one that reads: a write of one of them meets the other.
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes a write of these bytes. `is_same` says that a range of them has the values already: whether others read those before or after makes no difference.
    pub(super) fn write(
        &mut self,
        bytes: &Range<usize>,
        actor: Actor,
        is_same: impl Fn(Range<usize>) -> bool,
    ) -> Result<(), Conflict> {
        for number in self.cells(bytes) {
            let (cell, at) = (&mut self.cells[number], number << self.shift);
            if let Some(&other) = [cell.writer, cell.same].iter().flatten().find(|writer| !writer.is_before(actor)) {
                return Err(Conflict { other, writes: true, at });
            }
            if is_same(at..at + (1 << self.shift)) {
                cell.same = Some(actor);
                continue;
            }
            if let Some(&other) = cell.readers.iter().flatten().find(|reader| !reader.is_before(actor)) {
                return Err(Conflict { other, writes: false, at });
            }
            *cell = Cell { writer: Some(actor), ..Cell::default() };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a word have the accesses of the word, also once another access has met less of it.
    #[test]
    fn bytes_have_the_accesses_of_their_word() {
        let [writer, reader] = [0, 1023].map(|thread| Actor::new(7, thread, 3));
        assert_eq!((reader.block(), reader.thread()), (7, 1023));
        let differs = |_: Range<usize>| false;
        let mut races = Races::new(64, 12);
        assert!(races.write(&(4..12), writer, differs).is_ok());
        assert!(races.read(&(0..4), reader).is_ok());
        let conflict =
            races.read(&(9..10), reader).err().map(|conflict| (conflict.other, conflict.writes, conflict.at));
        assert_eq!(conflict, Some((writer, true, 9)));
        // A barrier later, and for the writer, nothing races but with the read of the first word.
        assert!(races.read(&(4..12), Actor::new(7, 1023, 4)).is_ok());
        assert!(races.write(&(4..5), writer, differs).is_err_and(|conflict| !conflict.writes));
        assert!(races.write(&(3..4), writer, differs).is_err_and(|conflict| conflict.other == reader));
        assert!(races.write(&(3..4), writer, |_| true).is_ok());
    }
}

//! Races: two threads access the same byte, one of them writes, and no barrier of their block lies between the accesses.
//!
//! For each byte the last writer and a reader are kept, each with the number of barriers that its block had passed. Threads of different blocks are never
//! ordered. That is the idea of FastTrack (Flanagan and Freund, 2009), whose clocks are single numbers here, since a barrier orders all threads of a block.
//! Atomic and volatile accesses are made to race and are not looked at.

/// A thread of a launch between two barriers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Actor {
    /// The block, and the thread in it, by their numbers.
    pub(super) block: u32,
    pub(super) thread: u32,
    /// Barriers that its block has passed.
    pub(super) interval: u32,
}

impl Actor {
    fn is_same(self, other: Actor) -> bool {
        (self.block, self.thread) == (other.block, other.thread)
    }

    /// Did this access happen before one of `later`?
    fn is_before(self, later: Actor) -> bool {
        self.is_same(later) || (self.block == later.block && self.interval < later.interval)
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
#[derive(Default)]
pub(super) struct Races {
    cells: Vec<Cell>,
}

/// Another access to the same byte.
pub(super) struct Conflict {
    pub(super) other: Actor,
    pub(super) writes: bool,
}

impl Races {
    pub(super) fn new(bytes: usize) -> Races {
        Races { cells: vec![Cell::default(); bytes] }
    }

    /// Notes a read of the byte at `at`.
    pub(super) fn read(&mut self, at: usize, actor: Actor) -> Result<(), Conflict> {
        let cell = &mut self.cells[at];
        if let Some(writer) = cell.writer.filter(|writer| !writer.is_before(actor)) {
            return Err(Conflict { other: writer, writes: true });
        }
        // Readers before this one need not be kept: what is ordered behind this one is ordered behind them.
        match &mut cell.readers {
            [first, _] if first.is_none_or(|first| first.is_before(actor)) => *first = Some(actor),
            [_, second] if second.is_none_or(|second| second.is_before(actor)) => *second = Some(actor),
            // Readers of two blocks are enough: no write is ordered behind both.
            [Some(first), second] if first.block != actor.block => *second = Some(actor),
            // Two threads of a block are enough while this is the only one that reads: a write of one of them meets the other.
            _ => {}
        }
        Ok(())
    }

    /// Notes a write of the byte at `at`. `is_same` says that the byte has that value already: whether others read it before or after makes no difference.
    pub(super) fn write(&mut self, at: usize, actor: Actor, is_same: bool) -> Result<(), Conflict> {
        let cell = &mut self.cells[at];
        if let Some(&other) = [cell.writer, cell.same].iter().flatten().find(|writer| !writer.is_before(actor)) {
            return Err(Conflict { other, writes: true });
        }
        if is_same {
            cell.same = Some(actor);
            return Ok(());
        }
        if let Some(&other) = cell.readers.iter().flatten().find(|reader| !reader.is_before(actor)) {
            return Err(Conflict { other, writes: false });
        }
        *cell = Cell { writer: Some(actor), ..Cell::default() };
        Ok(())
    }
}

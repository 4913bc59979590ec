//! Cells: where instructions of unordered streams meet who comes after them.
//!
//! An instruction of an unordered stream has a cell while it is pending. The cell says whether it has passed, counts what
//! it still needs, holds it while it needs something, and lists who needs it: its *successors*. Its number is that of the cell
//! plus a multiple of [`CAP`] that grows with each life of the cell. So a number leads to its cell, and whether it has passed is
//! one comparison, also when the cell has gone on to other lives.
//!
//! A successor links itself in by one of the edges of its own cell: a stack of edges, which the instruction that passes closes
//! by one swap. Links are made under the submission lock alone. Nothing is allocated, and nothing is freed: cells go from
//! life to life with the slots of their instructions.
//!
//! Nobody is missed: who links itself in, and who asks to be woken, changes `list` by a read-modify-write, and so does who
//! closes it. One of them comes first: either the list is found closed, so the instruction has passed, or who closes it finds
//! the link or the flag. `loom_tests` has the model, and broken twins.
//!
//! Invariants:
//! * `passed` only grows, and is written before the list is closed.
//! * A cell starts a new life under the submission lock, once its slot has come back: so behind the end of the one before.
//! * An edge is read before the count of its owner is lowered: after that the owner may pass and start a new life.

use std::sync::OnceLock;

use crossbeam_utils::atomic::AtomicCell;
use streamvm_stream::{Point, StreamId};

use crate::job::Job;
use crate::slot::Slot;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Numbers of one cell are so far apart: the most cells that there may be.
pub(crate) const CAP: u64 = if cfg!(loom) { 16 } else { 1 << 22 };

/// Cells are made so many at a time.
const CHUNK: usize = if cfg!(loom) { 4 } else { 1024 };

/// How many needs a cell counts by itself; see [`Cells::needs`].
pub(crate) const EDGES: usize = 7;

/// The bits of an edge that tell its place in its cell.
const PLACE: u32 = 3;

/// Above this lies the level of a cell, beside what it counts.
const LEVEL: u32 = 28;

/// Flags of a list, beside the newest edge.
const CLOSED: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;

/// A cell's number, from 1.
pub(crate) type CellId = u32;

/// How urgent an instruction is: 0 is the most urgent.
pub(crate) type Level = u8;

/// One cell, on a line of its own.
#[repr(align(64))]
struct Cell {
    /// The highest number of this cell that has passed.
    passed: AtomicU64,
    /// The number of the life at hand.
    number: AtomicU64,
    /// The stream of the life at hand.
    stream: AtomicU32,
    /// The newest edge of a successor, and the flags.
    list: AtomicU32,
    /// What is not met yet, and the level of its instruction.
    unmet: AtomicU32,
    /// Where this cell's own edges lead: the edge that was linked in before it.
    next: [AtomicU32; EDGES],
    /// The instruction, while it needs something or lies in a worker's queue.
    job: AtomicCell<Option<Slot<Job>>>,
}

impl Cell {
    fn new() -> Cell {
        Cell {
            passed: AtomicU64::new(0),
            number: AtomicU64::new(0),
            stream: AtomicU32::new(0),
            list: AtomicU32::new(CLOSED),
            unmet: AtomicU32::new(0),
            next: std::array::from_fn(|_| AtomicU32::new(0)),
            job: AtomicCell::new(None),
        }
    }

    fn meet(&self) -> Option<(StreamId, Level)> {
        let before = self.unmet.fetch_sub(1, Ordering::AcqRel);
        // The last: nobody else lowers it any more, and the instruction is still to run.
        (before & ((1 << LEVEL) - 1) == 1)
            .then(|| (StreamId(self.stream.load(Ordering::Relaxed)), (before >> LEVEL) as Level))
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Cell>() == 64, "one line");
const _: () = assert!(EDGES <= 1 << PLACE && CAP << PLACE <= WANTED as u64, "an edge fits beside the flags");

/// The cell of a number.
pub(crate) fn cell_of(number: u64) -> CellId {
    (number % CAP) as CellId
}

/// All cells of an engine.
pub(crate) struct Cells {
    chunks: Box<[OnceLock<Box<[Cell]>>]>,
    /// How many there are. Written under the submission lock.
    count: AtomicU32,
}

impl Cells {
    /// None yet.
    pub(crate) fn new() -> Cells {
        let chunks = (0..CAP as usize / CHUNK).map(|_| OnceLock::new()).collect();
        Cells { chunks, count: AtomicU32::new(0) }
    }

    /// Makes one more. Under the submission lock.
    pub(crate) fn add(&self) -> CellId {
        let id = self.count.load(Ordering::Relaxed) + 1;
        self.chunks[id as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Cell::new()).collect());
        self.count.store(id, Ordering::Release);
        id
    }

    fn cell(&self, id: CellId) -> &Cell {
        let chunk = self.chunks[id as usize / CHUNK].get();
        // Numbers come from cells that were added.
        &chunk.unwrap_or_else(|| unreachable!("cell {id} was never added"))[id as usize % CHUNK]
    }

    /// Whether the instruction of this number has passed.
    #[inline]
    pub(crate) fn has_passed(&self, number: u64) -> bool {
        self.cell(cell_of(number)).passed.load(Ordering::Acquire) >= number
    }

    /// Starts a new life of a cell, whose last one has passed: the number of its instruction. That needs one thing, which
    /// [`Cells::meet`] has to say is met.
    pub(crate) fn begin(&self, id: CellId, stream: StreamId, level: Level) -> Point {
        let cell = self.cell(id);
        let number = match cell.passed.load(Ordering::Relaxed) {
            0 => u64::from(id),
            before => before + CAP,
        };
        cell.stream.store(stream.0, Ordering::Relaxed);
        cell.unmet.store(u32::from(level) << LEVEL | 1, Ordering::Relaxed);
        // Behind the end of the life before: who finds this finds that it has passed.
        cell.list.store(0, Ordering::Release);
        cell.number.store(number, Ordering::Release);
        Point::new(stream, number)
    }

    /// One thing more is needed by a cell that has not been told yet that all is met.
    pub(crate) fn need(&self, id: CellId) {
        self.cell(id).unmet.fetch_add(1, Ordering::Relaxed);
    }

    /// Has `id` need what has this number, by its edge `place`, unless that has passed. Under the submission lock, while
    /// the cell still needs what [`Cells::begin`] gave it. Returns whether the edge was used.
    pub(crate) fn needs(&self, id: CellId, place: usize, number: u64) -> bool {
        let (cell, source) = (self.cell(id), self.cell(cell_of(number)));
        if source.passed.load(Ordering::Acquire) >= number {
            return false;
        }
        // It is of this life: a new one would begin under the lock that the caller holds.
        let edge = id << PLACE | place as u32;
        cell.unmet.fetch_add(1, Ordering::Relaxed);
        let mut list = source.list.load(Ordering::Acquire);
        while list & CLOSED == 0 {
            cell.next[place].store(list & !WANTED, Ordering::Relaxed);
            let linked = edge | (list & WANTED);
            match source.list.compare_exchange_weak(list, linked, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => list = now,
            }
        }
        // Not the last: what `begin` gave it is still needed.
        cell.unmet.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Whether a cell needs more than what [`Cells::begin`] gave it.
    pub(crate) fn needs_more(&self, id: CellId) -> bool {
        self.cell(id).unmet.load(Ordering::Relaxed) & ((1 << LEVEL) - 1) > 1
    }

    /// Puts the instruction of a cell in, to be taken out once it can run.
    pub(crate) fn put(&self, id: CellId, job: Slot<Job>) {
        self.cell(id).job.store(Some(job));
    }

    /// Takes it out.
    pub(crate) fn take(&self, id: CellId) -> Option<Slot<Job>> {
        self.cell(id).job.take()
    }

    /// Something that a cell needs is met. If that was the last, its stream and its level.
    #[must_use = "it can run now"]
    pub(crate) fn meet(&self, id: CellId) -> Option<(StreamId, Level)> {
        self.cell(id).meet()
    }

    /// Publishes that the instruction of this number has passed, and calls `ready` for each successor that needs nothing
    /// more. Returns whether somebody asked to be woken. Who ran or skipped it alone.
    #[must_use = "sleepers must be woken"]
    pub(crate) fn pass(&self, number: u64, mut ready: impl FnMut(CellId, StreamId, Level)) -> bool {
        let cell = self.cell(cell_of(number));
        cell.passed.store(number, Ordering::Release);
        let list = cell.list.swap(CLOSED, Ordering::AcqRel);
        let mut edge = list & !(CLOSED | WANTED);
        while edge != 0 {
            let (id, place) = (edge >> PLACE, edge & ((1 << PLACE) - 1));
            let successor = self.cell(id);
            edge = successor.next[place as usize].load(Ordering::Relaxed);
            if let Some((stream, level)) = successor.meet() {
                ready(id, stream, level);
            }
        }
        list & WANTED != 0
    }

    /// Asks that whoever passes this number says so. Whether it has passed already: then nobody will.
    #[must_use = "what has passed is not told again"]
    pub(crate) fn want(&self, number: u64) -> bool {
        let cell = self.cell(cell_of(number));
        cell.list.fetch_or(WANTED, Ordering::AcqRel);
        // In a new life of the cell the flag is one wake-up in vain.
        cell.passed.load(Ordering::Acquire) >= number
    }

    /// The points of all cells that have not passed.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Point> + '_ {
        (1..=self.count.load(Ordering::Acquire)).map(|id| self.cell(id)).filter_map(|cell| {
            let number = cell.number.load(Ordering::Acquire);
            let stream = StreamId(cell.stream.load(Ordering::Relaxed));
            (cell.passed.load(Ordering::Acquire) < number).then_some(Point::new(stream, number))
        })
    }
}

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

use streamvm_stream::{Point, StreamId};

use crate::berth::Berth;
use crate::job::Job;
use crate::prepare::MOST_ON_WORKERS;
use crate::slot::{self, Slot};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Numbers of one cell are so far apart: the most cells that there may be.
pub(crate) const CAP: u64 = if cfg!(loom) { 16 } else { 1 << 22 };

/// Joins that may be pending: so many that each instruction that may be pending has a cell beside them.
const JOINABLE: u64 = if cfg!(all(test, not(loom))) { 256 } else { CAP / 4 };
const _: () = assert!(JOINABLE + 2 * MOST_ON_WORKERS as u64 <= CAP || cfg!(loom), "what is pending, and one list more");

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
    /// The number of the last life that was told of.
    number: AtomicU64,
    /// The stream of the life at hand.
    stream: AtomicU32,
    /// The newest edge of a successor, and the flags.
    list: AtomicU32,
    /// What is not met yet, and the level of its instruction.
    unmet: AtomicU32,
    /// Where this cell's own edges lead: the edge that was linked in before it.
    next: [AtomicU32; EDGES],
    /// The instruction, while it needs something.
    job: Berth<Job>,
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
            job: Berth::new(),
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
    /// Joins that are pending.
    joins: AtomicU32,
}

impl Cells {
    /// None yet.
    pub(crate) fn new() -> Cells {
        let chunks = (0..CAP as usize / CHUNK).map(|_| OnceLock::new()).collect();
        Cells { chunks, count: AtomicU32::new(0), joins: AtomicU32::new(0) }
    }

    /// Makes one more. Under the submission lock.
    pub(crate) fn add(&self) -> CellId {
        let id = self.count.load(Ordering::Relaxed) + 1;
        self.chunks[id as usize / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Cell::new()).collect());
        self.count.store(id, Ordering::Release);
        id
    }

    /// How many there are.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn made(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    /// Whether so many needs may be joined, beside what is joined already.
    pub(crate) fn suffice(&self, needs: usize) -> bool {
        u64::from(self.joins.load(Ordering::Relaxed)) + needs.div_ceil(EDGES - 1) as u64 <= JOINABLE
    }

    /// A join is pending.
    pub(crate) fn join_begins(&self) {
        self.joins.fetch_add(1, Ordering::Relaxed);
    }

    /// A join has passed.
    pub(crate) fn join_ends(&self) {
        self.joins.fetch_sub(1, Ordering::Relaxed);
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
    /// [`Cells::meet`] has to say is met. [`Cells::tell`] makes it known.
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
        Point::new(stream, number)
    }

    /// From now on an instruction is among those that are pending. A join never is: nobody waits for it but its successor.
    pub(crate) fn tell(&self, point: Point) {
        self.cell(cell_of(point.seq)).number.store(point.seq, Ordering::Release);
    }

    /// One thing more is needed by a cell that has not been told yet that all is met.
    pub(crate) fn need(&self, id: CellId) {
        self.cell(id).unmet.fetch_add(1, Ordering::Relaxed);
    }

    /// Has `id` need what has these numbers, at most [`EDGES`], but for what has passed. Once in a life, under the submission
    /// lock, while nobody else can meet or add a need of it: no edge of this life is linked in, and the caller has its job.
    pub(crate) fn needs(&self, id: CellId, numbers: &[u64]) {
        debug_assert!(numbers.len() <= EDGES, "an edge each");
        let cell = self.cell(id);
        // All at once, before somebody can meet one.
        let unmet = cell.unmet.load(Ordering::Relaxed);
        cell.unmet.store(unmet + numbers.len() as u32, Ordering::Relaxed);
        let missed =
            numbers.iter().enumerate().filter(|(place, number)| !self.link(cell, id, *place, **number)).count();
        if missed > 0 {
            // Not the last: what `begin` gave it is still needed.
            cell.unmet.fetch_sub(missed as u32, Ordering::Relaxed);
        }
    }

    /// Links a cell in by its edge `place`, unless what has this number has passed. Returns whether it is told when that passes.
    fn link(&self, cell: &Cell, id: CellId, place: usize, number: u64) -> bool {
        let source = self.cell(cell_of(number));
        if source.passed.load(Ordering::Acquire) >= number {
            return false;
        }
        // It is of this life: a new one would begin under the lock that the caller holds.
        let edge = id << PLACE | place as u32;
        let mut list = source.list.load(Ordering::Acquire);
        while list & CLOSED == 0 {
            cell.next[place].store(list & !WANTED, Ordering::Relaxed);
            let linked = edge | (list & WANTED);
            match source.list.compare_exchange_weak(list, linked, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => list = now,
            }
        }
        false
    }

    /// Whether a cell needs more than what [`Cells::begin`] gave it.
    pub(crate) fn needs_more(&self, id: CellId) -> bool {
        // Acquires: what it needed and has passed by now is not met again by the caller.
        self.cell(id).unmet.load(Ordering::Acquire) & ((1 << LEVEL) - 1) > 1
    }

    /// Puts the instruction of a cell in, to be taken out once it can run.
    pub(crate) fn put(&self, id: CellId, job: Slot<Job>) {
        self.cell(id).job.put(job);
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

    /// Asks for a cell, which will be written to soon.
    #[inline]
    pub(crate) fn fetch(&self, id: CellId) {
        if let Some(cell) = self.known(id) {
            slot::fetch(std::ptr::from_ref(cell).addr(), 1);
        }
    }

    /// Asks for what runs once the instruction of this number has passed, if a successor does, and for the cell of who comes
    /// behind that: each leads to the next, and comes from the submitter's core. Who is about to run it.
    #[inline]
    pub(crate) fn fetch_successors(&self, number: u64) {
        let newest = |cell: &Cell| (cell.list.load(Ordering::Relaxed) & !(CLOSED | WANTED)) >> PLACE;
        if let Some(cell) = self.known(newest(self.cell(cell_of(number)))) {
            cell.job.fetch();
            self.fetch(newest(cell));
        }
    }

    /// The cell of a number that was read without order, which only a hint may be: 0, and a cell that this thread does not see
    /// yet, are none.
    #[inline]
    fn known(&self, id: CellId) -> Option<&Cell> {
        let chunk = if id == 0 { None } else { self.chunks[id as usize / CHUNK].get() };
        chunk.map(|chunk| &chunk[id as usize % CHUNK])
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

    /// The points of all instructions that were [told](Cells::tell) of and have not passed.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Point> + '_ {
        (1..=self.count.load(Ordering::Acquire)).map(|id| self.cell(id)).filter_map(|cell| {
            let number = cell.number.load(Ordering::Acquire);
            let stream = StreamId(cell.stream.load(Ordering::Relaxed));
            (cell.passed.load(Ordering::Acquire) < number).then_some(Point::new(stream, number))
        })
    }
}

#[cfg(all(test, not(loom)))]
#[path = "cells_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const POOL: StreamId = StreamId(0);

    /// A source that passes while a successor links itself in by `needs`. It is told to run exactly once.
    fn told_once(needs: fn(&Cells, CellId, u64)) {
        loom::model(move || {
            let cells = Arc::new(Cells::new());
            let [source, successor] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
            let runner = {
                let cells = cells.clone();
                thread::spawn(move || {
                    let mut told = 0;
                    let _ = cells.pass(source.seq, |_, _, _| told += 1);
                    told
                })
            };
            let id = cell_of(successor.seq);
            needs(&cells, id, source.seq);
            let here = usize::from(cells.meet(id).is_some());
            if here == 1 {
                assert!(cells.has_passed(source.seq), "who is told sees that the source has passed");
            }
            let there = runner.join().expect("the runner does not panic");
            assert_eq!(here + there, 1, "told to run");
        });
    }

    #[test]
    fn loom_a_successor_is_told_to_run_once() {
        told_once(|cells, id, number| {
            cells.needs(id, &[number]);
        });
    }

    #[test]
    #[should_panic(expected = "told to run")]
    fn loom_a_successor_that_links_itself_in_by_a_plain_store_is_missed() {
        told_once(|cells, id, number| {
            let (cell, source) = (cells.cell(id), cells.cell(cell_of(number)));
            if source.list.load(Ordering::SeqCst) & CLOSED == 0 {
                cell.unmet.fetch_add(1, Ordering::SeqCst);
                source.list.store(id << PLACE, Ordering::SeqCst);
            }
        });
    }

    /// A submitter that finds that nothing is needed any more sends the instruction off without another look: what the source
    /// wrote is seen.
    fn seen_by_who_needs_nothing(needs_more: fn(&Cells, CellId) -> bool) {
        loom::model(move || {
            let cells = Arc::new(Cells::new());
            let written = Arc::new(AtomicU32::new(0));
            let [source, successor] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
            let id = cell_of(successor.seq);
            cells.needs(id, &[source.seq]);
            let runner = {
                let (cells, written) = (cells.clone(), written.clone());
                thread::spawn(move || {
                    written.store(7, Ordering::Relaxed);
                    let _ = cells.pass(source.seq, |_, _, _| ());
                })
            };
            if !needs_more(&cells, id) {
                assert_eq!(written.load(Ordering::Relaxed), 7, "what the source wrote");
            }
            runner.join().expect("the runner does not panic");
        });
    }

    #[test]
    fn loom_who_needs_nothing_any_more_sees_what_was_needed() {
        seen_by_who_needs_nothing(Cells::needs_more);
    }

    #[test]
    #[should_panic(expected = "what the source wrote")]
    fn loom_a_look_that_acquires_nothing_is_a_race() {
        seen_by_who_needs_nothing(|cells, id| cells.cell(id).unmet.load(Ordering::Relaxed) & ((1 << LEVEL) - 1) > 1);
    }

    /// A sleeper asks by `want` for a number whose instruction passes and whose cell may go on to another life.
    fn never_missed(want: fn(&Cells, u64) -> bool) {
        loom::model(move || {
            let cells = Arc::new(Cells::new());
            let id = cells.add();
            let first = cells.begin(id, POOL, 1);
            let runner = {
                let cells = cells.clone();
                thread::spawn(move || {
                    let woken = cells.pass(first.seq, |_, _, _| ());
                    // The slot has come back: the next life begins behind the end of this one.
                    cells.begin(id, POOL, 1);
                    woken
                })
            };
            let sleeps = !want(&cells, first.seq);
            let woken = runner.join().expect("the runner does not panic");
            assert!(!sleeps || woken, "it sleeps and was not woken");
        });
    }

    #[test]
    fn loom_a_sleeper_is_never_missed() {
        never_missed(|cells, number| cells.want(number));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_sleeper_that_looks_before_it_asks_is_missed() {
        never_missed(|cells, number| {
            let passed = cells.has_passed(number);
            let _ = cells.want(number);
            passed
        });
    }

    /// A sleeper asks for a number while a successor is linked in by `link` and its instruction passes: the sleeper is woken, and the
    /// successor is told, whichever comes first.
    fn never_missed_beside_a_link(link: fn(&Cells, CellId, u64)) {
        loom::model(move || {
            let cells = Arc::new(Cells::new());
            let [source, successor] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
            let runner = {
                let cells = cells.clone();
                thread::spawn(move || {
                    let mut told = 0;
                    let woken = cells.pass(source.seq, |_, _, _| told += 1);
                    (woken, told)
                })
            };
            let sleeper = {
                let cells = cells.clone();
                thread::spawn(move || !cells.want(source.seq))
            };
            let id = cell_of(successor.seq);
            link(&cells, id, source.seq);
            let here = usize::from(cells.meet(id).is_some());
            let sleeps = sleeper.join().expect("the sleeper does not panic");
            let (woken, there) = runner.join().expect("the runner does not panic");
            assert!(!sleeps || woken, "it sleeps and was not woken");
            assert_eq!(here + there, 1, "told to run");
        });
    }

    #[test]
    fn loom_a_sleeper_is_never_missed_beside_a_link() {
        never_missed_beside_a_link(|cells, id, number| cells.needs(id, &[number]));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_link_that_forgets_that_somebody_asked_leaves_a_sleeper() {
        never_missed_beside_a_link(|cells, id, number| {
            let (cell, source) = (cells.cell(id), cells.cell(cell_of(number)));
            cell.unmet.fetch_add(1, Ordering::Relaxed);
            let mut list = source.list.load(Ordering::Acquire);
            while list & CLOSED == 0 {
                cell.next[0].store(list & !WANTED, Ordering::Relaxed);
                match source.list.compare_exchange(list, id << PLACE, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(now) => list = now,
                }
            }
            cell.unmet.fetch_sub(1, Ordering::Relaxed);
        });
    }

    #[test]
    fn loom_of_two_sources_the_last_tells_and_what_both_wrote_is_seen() {
        loom::model(|| {
            let cells = Arc::new(Cells::new());
            let written = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let points: [Point; 3] = std::array::from_fn(|_| cells.begin(cells.add(), POOL, 1));
            let id = cell_of(points[2].seq);
            cells.needs(id, &[points[0].seq, points[1].seq]);
            assert_eq!(cells.meet(id), None);
            let pass = |which: usize| {
                let (cells, written, number) = (cells.clone(), written.clone(), points[which].seq);
                move || {
                    written[which].store(7, Ordering::Relaxed);
                    let mut told = 0;
                    let _ = cells.pass(number, |_, _, _| {
                        told += 1;
                        assert!(written.iter().all(|value| value.load(Ordering::Relaxed) == 7));
                    });
                    told
                }
            };
            let other = thread::spawn(pass(1));
            let told = pass(0)() + other.join().expect("the runner does not panic");
            assert_eq!(told, 1);
        });
    }
}

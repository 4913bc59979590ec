//! What the engine's threads share about one stream, and the table of streams.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use streamvm_stream::{Point, StreamId, StreamKey, StreamPolicy};

use crate::cells::Cells;
use crate::context_shared::ContextShared;
use crate::flight::Flight;
use crate::progress::{Ordered, Progress, Unordered};
use crate::sync::{AtomicU64, Ordering};
use crate::waiters::Wake;

pub use streamvm_stream::MAX_STREAMS;

/// A waiter looks at every pause once no more than so many are left. Its line is then no longer written to all the time: a waiter
/// that looked as often from the beginning took it from the runner. Measured on 2 cores, µs, medians of 5 runs, submission of a list
/// and wait, without such looks / from the beginning: 1 instruction 0.66 / 0.49, 16 1.64 / 1.84, 64 4.9 / 5.5, 256 22.3 / 24.3.
const NEAR: u64 = 4;

/// One stream, as its submitters, its runner and its waiters see it.
pub(crate) struct StreamEntry {
    pub(crate) id: StreamId,
    pub(crate) key: StreamKey,
    pub(crate) policy: &'static dyn StreamPolicy,
    /// The thread context that runs it, or the door to the pool that does.
    pub(crate) context: Arc<ContextShared>,
    pub(crate) progress: Progress,
    /// What was launched and has not passed, where the device runs it later.
    pub(crate) flight: Option<Flight>,
    /// Written with every instruction, so apart from what the runner reads with every instruction.
    submission: CachePadded<Submission>,
}

/// What submitters write and read of a stream.
#[derive(Default)]
struct Submission {
    /// The highest number submitted; of an unordered stream, how many were. Written under the submission lock.
    submitted: AtomicU64,
    /// The number of the last instruction submitted that has a caller's code, or 0. Written under the submission lock, before
    /// `submitted`. Not kept for unordered streams.
    last_code: AtomicU64,
    /// How many instructions the scheduler has dispatched. Written by the scheduler, after they reached the context:
    /// when it equals what was sent to the scheduler, the right to dispatch is back with the submitters.
    dispatched: AtomicU64,
}

impl Submission {
    fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Acquire)
    }

    fn note_dispatched(&self, count: u64) {
        // The scheduler is the only writer.
        let dispatched = self.dispatched.load(Ordering::Relaxed) + count;
        self.dispatched.store(dispatched, Ordering::Release);
    }
}

impl StreamEntry {
    pub(crate) fn new(
        id: StreamId,
        key: StreamKey,
        policy: &'static dyn StreamPolicy,
        context: Arc<ContextShared>,
        flight: Option<Flight>,
        unordered: Option<Unordered>,
    ) -> StreamEntry {
        let ordered = || Progress::Ordered(Ordered::new());
        let progress = unordered.map_or_else(ordered, |unordered| Progress::Unordered(Box::new(unordered)));
        StreamEntry { id, key, policy, context, progress, flight, submission: CachePadded::default() }
    }

    /// The stream's progress, if it is unordered.
    pub(crate) fn unordered(&self) -> Option<&Unordered> {
        match &self.progress {
            Progress::Ordered(_) => None,
            Progress::Unordered(unordered) => Some(unordered),
        }
    }

    /// Whether the point at this number has passed.
    #[inline]
    pub(crate) fn has_passed(&self, seq: u64) -> bool {
        match &self.progress {
            Progress::Ordered(ordered) => ordered.timeline.passed() >= seq,
            Progress::Unordered(unordered) => unordered.cells.has_passed(seq),
        }
    }

    /// Whether few instructions of its stream pass before this one. Of an unordered stream that says nothing.
    #[inline]
    pub(crate) fn is_near(&self, seq: u64) -> bool {
        match &self.progress {
            Progress::Ordered(ordered) => seq <= ordered.timeline.passed() + NEAR,
            Progress::Unordered(_) => true,
        }
    }

    /// The number up to which everything has passed; of an unordered stream, how many instructions have.
    #[inline]
    pub(crate) fn passed(&self) -> u64 {
        match &self.progress {
            Progress::Ordered(ordered) => ordered.timeline.passed(),
            Progress::Unordered(unordered) => unordered.passed(),
        }
    }

    /// Publishes that everything up to `seq` has passed, and wakes who waits for it. The stream's runner alone; workers, who
    /// have successors to run, do it otherwise.
    #[inline(always)]
    pub(crate) fn pass(&self, seq: u64) {
        match &self.progress {
            Progress::Ordered(Ordered { timeline, waiters }) => {
                if timeline.advance(seq) {
                    waiters.wake(timeline, seq);
                }
            }
            Progress::Unordered(unordered) => pass_in_order(unordered, seq),
        }
    }

    /// Has `wake` done once `seq` has passed; gives it back if it has. The number returned names the waiter.
    pub(crate) fn when_passed(&self, seq: u64, wake: Wake) -> Result<u64, Wake> {
        self.demand(seq);
        match &self.progress {
            Progress::Ordered(ordered) => ordered.waiters.add(&ordered.timeline, seq, wake),
            Progress::Unordered(unordered) => unordered.add(seq, wake),
        }
    }

    /// Removes a waiter that gave up.
    pub(crate) fn forget(&self, seq: u64, id: u64) {
        match &self.progress {
            Progress::Ordered(ordered) => ordered.waiters.remove(&ordered.timeline, id),
            Progress::Unordered(unordered) => unordered.remove(seq, id),
        }
    }

    /// The points that stand for all that is submitted and has not passed.
    pub(crate) fn open_points(&self) -> impl Iterator<Item = Point> + '_ {
        let last = Point::new(self.id, self.submitted());
        let cells = self.unordered().map(|unordered| &unordered.cells);
        let pending = cells.into_iter().flat_map(|cells| cells.pending()).filter(|point| point.stream == self.id);
        pending.chain((!self.id.is_unordered()).then_some(last))
    }

    /// Somebody wants to know when `seq` has passed. Streams that advance by themselves need no telling. Returns whether
    /// the stream's context has to record for it, and is woken.
    pub(crate) fn demand(&self, seq: u64) -> bool {
        let records = self.flight.as_ref().is_some_and(|flight| flight.demand(seq));
        if records {
            self.context.sleeper.wake();
        }
        records
    }

    pub(crate) fn submitted(&self) -> u64 {
        self.submission.submitted.load(Ordering::Acquire)
    }

    pub(crate) fn note_submitted(&self, seq: u64) {
        self.submission.submitted.store(seq, Ordering::Release);
    }

    /// An instruction with a caller's code was submitted: told before [`StreamEntry::note_submitted`] of it.
    #[inline]
    pub(crate) fn note_code(&self, seq: u64) {
        self.submission.last_code.store(seq, Ordering::Release);
    }

    /// Whether among what is submitted and has not passed there may be a caller's code. If there is any up to a point that the calling
    /// thread knows of, this says so.
    #[inline]
    pub(crate) fn may_hold_code(&self) -> bool {
        self.id.is_unordered() || self.submission.last_code.load(Ordering::Acquire) > self.passed()
    }

    /// Whether the last instruction that has passed has a caller's code, and none behind it does.
    pub(crate) fn has_passed_code(&self) -> bool {
        let code = self.submission.last_code.load(Ordering::Relaxed);
        code != 0 && code == self.passed()
    }

    pub(crate) fn dispatched(&self) -> u64 {
        self.submission.dispatched()
    }

    pub(crate) fn note_dispatched(&self, count: u64) {
        self.submission.note_dispatched(count);
    }
}

/// Passes an instruction of an unordered stream where one thread runs everything in order.
#[inline(never)]
fn pass_in_order(unordered: &Unordered, seq: u64) {
    unordered.count_other();
    if unordered.cells.pass(seq, |id, _, _| unreachable!("cell {id} has needs where everything is in order")) {
        unordered.wake(seq);
    }
}

/// All streams of an engine. Grows under the submission lock, read by every thread without one.
pub(crate) struct StreamTable {
    entries: Box<[OnceLock<Arc<StreamEntry>>]>,
    /// Where what is pending on unordered streams is found.
    cells: Arc<Cells>,
}

impl StreamTable {
    pub(crate) fn new() -> StreamTable {
        StreamTable { entries: (0..MAX_STREAMS).map(|_| OnceLock::new()).collect(), cells: Arc::new(Cells::new()) }
    }

    /// The cells of all unordered streams.
    pub(crate) fn cells(&self) -> &Arc<Cells> {
        &self.cells
    }

    /// Adds the stream under its id.
    pub(crate) fn add(&self, entry: Arc<StreamEntry>) {
        // Ids are dense and given once, under the submission lock.
        let _ = self.entries[entry.id.index()].set(entry);
    }

    /// The stream of an id that the engine gave out.
    pub(crate) fn get(&self, id: StreamId) -> Option<&Arc<StreamEntry>> {
        self.entries.get(id.index()).and_then(OnceLock::get)
    }

    /// Whether a point has passed. A stream that does not exist has nothing to wait for.
    pub(crate) fn has_passed(&self, point: Point) -> bool {
        self.get(point.stream).is_none_or(|entry| entry.has_passed(point.seq))
    }

    /// All streams so far.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<StreamEntry>> {
        self.entries.iter().map_while(OnceLock::get)
    }

    /// How many instructions are submitted and have not passed.
    pub(crate) fn pending(&self) -> u64 {
        self.iter().map(|entry| entry.submitted().saturating_sub(entry.passed())).sum()
    }
}

impl Drop for StreamTable {
    fn drop(&mut self) {
        // The table goes with the engine, which every thread of it holds, so no context runs any more.
        self.iter().for_each(|entry| entry.context.forget_opened());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::inbox::Inbox;
    use crate::slot::{Chain, Slot};

    #[derive(Default)]
    struct Shared {
        submission: Submission,
        to_scheduler: Inbox<u32>,
        context: Inbox<u32>,
    }

    impl Default for Inbox<u32> {
        fn default() -> Self {
            Inbox::new()
        }
    }

    fn one(value: u32) -> Chain<u32> {
        let mut chain = Chain::new();
        chain.push(Slot::new(value));
        chain
    }

    /// Number 1 was sent to the scheduler. While the scheduler dispatches it by `step`, a submitter sends 2 and 3,
    /// straight to the context once nothing is held back. Both yield where the other must be let in: loom alone reduces
    /// these orders away, and finds no fault in the twin.
    fn order_is_kept(step: fn(&Shared)) {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            shared.to_scheduler.push(&mut one(1));
            let scheduler = {
                let shared = shared.clone();
                thread::spawn(move || step(&shared))
            };
            thread::yield_now();
            let mut sent = 1;
            for number in [2, 3] {
                if sent == shared.submission.dispatched() {
                    shared.context.push(&mut one(number));
                } else {
                    sent += 1;
                    shared.to_scheduler.push(&mut one(number));
                }
            }
            scheduler.join().expect("the scheduler does not panic");
            while shared.submission.dispatched() < sent {
                step(&shared);
            }
            let mut chain = shared.context.take();
            let order: Vec<u32> = std::iter::from_fn(|| chain.pop().map(|slot| *slot)).collect();
            assert_eq!(order, [1, 2, 3], "the order of the stream");
        });
    }

    #[test]
    fn loom_the_right_to_dispatch_comes_back_behind_what_was_dispatched() {
        order_is_kept(|shared| {
            let mut jobs = shared.to_scheduler.take();
            let count = jobs.len() as u64;
            shared.context.push(&mut jobs);
            thread::yield_now();
            shared.submission.note_dispatched(count);
        });
    }

    #[test]
    #[should_panic(expected = "the order of the stream")]
    fn loom_a_right_that_comes_back_before_the_dispatch_is_overtaken() {
        order_is_kept(|shared| {
            let mut jobs = shared.to_scheduler.take();
            shared.submission.note_dispatched(jobs.len() as u64);
            thread::yield_now();
            shared.context.push(&mut jobs);
        });
    }
}

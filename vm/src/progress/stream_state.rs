//! What the engine's threads share about one stream, and the table of streams.
//!
//! Submitters write the submission counts under the submission lock; the stream's runner writes its progress; every thread may
//! read.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use streamvm_ep::StepNote;
use streamvm_stream::{Point, StreamId, StreamKey};

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::dependence_node::DependenceNodes;
use crate::progress::in_flight::InFlight;
use crate::progress::unordered::{Ordered, Progress, Unordered};
use crate::progress::waiters::Wake;
use crate::sync::{AtomicU64, Ordering};

pub(crate) use streamvm_stream::MAX_STREAMS;

/// A waiter makes spin checks once no more than this many numbers are left. Until then the runner keeps writing to that cache line,
/// and a waiter that polls it takes it away from the runner (docs/adr/waiting-callers.md).
const NEAR: u64 = 4;

/// One stream, as its submitters, its runner and its waiters see it.
pub(crate) struct StreamState {
    pub(crate) id: StreamId,
    pub(crate) key: StreamKey,
    /// The thread context that runs it, or the injector of the pool that does.
    pub(crate) context: Arc<ContextHandle>,
    pub(crate) progress: Progress,
    /// The list in flight, where the device runs commands later.
    pub(crate) in_flight: Option<InFlight>,
    /// Where the stream notes the step of a program that it is at.
    pub(crate) step_note: Option<Arc<StepNote>>,
    /// Written with every instruction, so on other cache lines than what the runner reads with every instruction.
    submission: CachePadded<Submission>,
}

/// The counts that submitters write and read.
#[derive(Default)]
struct Submission {
    /// The highest number submitted; of an unordered stream, how many instructions were. Written under the submission lock.
    submitted: AtomicU64,
    /// The number of the last submitted instruction that has a caller's code which callers may not run, or 0. Written under the submission lock, before
    /// `submitted`. Not kept for unordered streams.
    last_code: AtomicU64,
    /// How many instructions the scheduler has dispatched. The scheduler writes it after they reached the context: when it equals
    /// the number sent to the scheduler, submitters have the right to dispatch again.
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

impl StreamState {
    pub(crate) fn new(
        id: StreamId,
        key: StreamKey,
        context: Arc<ContextHandle>,
        in_flight: Option<InFlight>,
        unordered: Option<Unordered>,
    ) -> StreamState {
        let ordered = || Progress::Ordered(Ordered::new());
        let progress = unordered.map_or_else(ordered, |unordered| Progress::Unordered(Box::new(unordered)));
        let (step_note, submission) = (None, CachePadded::default());
        StreamState { id, key, context, progress, in_flight, step_note, submission }
    }

    /// Sets where the stream notes the step of a program that it is at.
    pub(crate) fn with_step_note(self, step_note: Option<Arc<StepNote>>) -> StreamState {
        StreamState { step_note, ..self }
    }

    /// The stream's progress, if it is unordered.
    pub(crate) fn unordered(&self) -> Option<&Unordered> {
        match &self.progress {
            Progress::Ordered(_) => None,
            Progress::Unordered(unordered) => Some(unordered),
        }
    }

    /// Whether the point with this number has passed.
    #[inline]
    pub(crate) fn has_passed(&self, seq: u64) -> bool {
        match &self.progress {
            Progress::Ordered(ordered) => ordered.timeline.passed() >= seq,
            Progress::Unordered(unordered) => unordered.nodes.has_passed(seq),
        }
    }

    /// Whether at most [`NEAR`] numbers up to this one have not passed. Always true for an unordered stream.
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

    /// Publishes that everything up to `seq` has passed, and wakes its waiters. Only the stream's runner calls this; workers, which
    /// have successors to start, pass their tasks in `execute::worker`.
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

    /// Registers `wake` for when `seq` has passed, and returns the id of the waiter.
    ///
    /// # Errors
    /// Gives `wake` back if `seq` has passed.
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
            Progress::Ordered(ordered) => ordered.waiters.remove(&ordered.timeline, seq, id),
            Progress::Unordered(unordered) => unordered.remove(seq, id),
        }
    }

    /// How many waiters there are. Counts them.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn waiters(&self) -> usize {
        match &self.progress {
            Progress::Ordered(ordered) => ordered.waiters.len(),
            Progress::Unordered(unordered) => unordered.waiters(),
        }
    }

    /// The points that cover all that is submitted and has not passed: the last number of an ordered stream, each pending one of an
    /// unordered stream.
    pub(crate) fn open_points(&self) -> impl Iterator<Item = Point> + '_ {
        let last = Point::new(self.id, self.submitted());
        let nodes = self.unordered().map(|unordered| &unordered.nodes);
        let pending = nodes.into_iter().flat_map(|nodes| nodes.pending()).filter(|point| point.stream == self.id);
        pending.chain((!self.id.is_unordered()).then_some(last))
    }

    /// A waiter asks when `seq` has passed. Has no effect on a stream without a list in flight. Returns whether the stream's
    /// context had to be woken to record an event.
    pub(crate) fn demand(&self, seq: u64) -> bool {
        let records = self.in_flight.as_ref().is_some_and(|in_flight| in_flight.demand(seq));
        if records {
            self.context.parker.wake();
        }
        records
    }

    pub(crate) fn submitted(&self) -> u64 {
        self.submission.submitted.load(Ordering::Acquire)
    }

    pub(crate) fn note_submitted(&self, seq: u64) {
        self.submission.submitted.store(seq, Ordering::Release);
    }

    /// Notes that an instruction with code that callers may not run is being submitted. Called before its [`StreamState::note_submitted`].
    #[inline]
    pub(crate) fn note_code(&self, seq: u64) {
        self.submission.last_code.store(seq, Ordering::Release);
    }

    /// Whether an instruction with code that callers may not run may be submitted and not passed. Never false if there is one up to a point that
    /// the calling thread knows of.
    #[inline]
    pub(crate) fn may_hold_code(&self) -> bool {
        self.id.is_unordered() || self.submission.last_code.load(Ordering::Acquire) > self.passed()
    }

    /// Whether the last instruction that has passed has code that callers may not run, and no submitted one after it does.
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

/// Passes an instruction of an unordered stream in inline mode, where one thread runs everything in order.
#[inline(never)]
fn pass_in_order(unordered: &Unordered, seq: u64) {
    unordered.count_other();
    if unordered.nodes.pass(seq, |id, _, _| unreachable!("node {id} has dependences though everything runs in order")) {
        unordered.wake(seq);
    }
}

/// All streams of an engine. Written under the submission lock, read by every thread without a lock.
pub(crate) struct StreamTable {
    entries: Box<[OnceLock<Arc<StreamState>>]>,
    /// The dependence nodes, which hold what is pending on unordered streams.
    nodes: Arc<DependenceNodes>,
}

impl StreamTable {
    pub(crate) fn new() -> StreamTable {
        StreamTable {
            entries: (0..MAX_STREAMS).map(|_| OnceLock::new()).collect(),
            nodes: Arc::new(DependenceNodes::new()),
        }
    }

    /// The dependence nodes of all unordered streams.
    pub(crate) fn nodes(&self) -> &Arc<DependenceNodes> {
        &self.nodes
    }

    /// Adds a stream under its id.
    pub(crate) fn add(&self, stream_state: Arc<StreamState>) {
        // Ids are dense and given out once, under the submission lock, so the place is empty.
        let _ = self.entries[stream_state.id.index()].set(stream_state);
    }

    /// The stream with this id, if the engine gave it out.
    pub(crate) fn get(&self, id: StreamId) -> Option<&Arc<StreamState>> {
        self.entries.get(id.index()).and_then(OnceLock::get)
    }

    /// Whether a point has passed. True for a stream that does not exist.
    pub(crate) fn has_passed(&self, point: Point) -> bool {
        self.get(point.stream).is_none_or(|stream_state| stream_state.has_passed(point.seq))
    }

    /// All streams so far.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<StreamState>> {
        self.entries.iter().map_while(OnceLock::get)
    }

    /// How many instructions are submitted and have not passed.
    pub(crate) fn pending(&self) -> u64 {
        self.iter().map(|stream_state| stream_state.submitted().saturating_sub(stream_state.passed())).sum()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::queue::mpsc::MpscQueue;
    use crate::queue::node::{NodeBox, NodeList};

    #[derive(Default)]
    struct Shared {
        submission: Submission,
        to_scheduler: MpscQueue<u32>,
        context: MpscQueue<u32>,
    }

    impl Default for MpscQueue<u32> {
        fn default() -> Self {
            MpscQueue::new()
        }
    }

    fn one(value: u32) -> NodeList<u32> {
        let mut list = NodeList::new();
        list.push(NodeBox::new(value));
        list
    }

    /// Number 1 was sent to the scheduler. While the scheduler dispatches it by `step`, a submitter sends 2 and 3, directly to the
    /// context once nothing is held back. Both sides yield where the other must run: loom's reduction leaves these orders out
    /// otherwise, and finds no fault in the broken variant.
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
            let mut list = shared.context.take();
            let order: Vec<u32> = std::iter::from_fn(|| list.pop().map(|boxed| *boxed)).collect();
            assert_eq!(order, [1, 2, 3], "the order of the stream");
        });
    }

    #[test]
    fn loom_submitters_dispatch_after_the_tasks_of_the_scheduler() {
        order_is_kept(|shared| {
            let mut tasks = shared.to_scheduler.take();
            let count = tasks.len() as u64;
            shared.context.push(&mut tasks);
            thread::yield_now();
            shared.submission.note_dispatched(count);
        });
    }

    #[test]
    #[should_panic(expected = "the order of the stream")]
    fn loom_a_count_before_the_dispatch_lets_a_submitter_overtake() {
        order_is_kept(|shared| {
            let mut tasks = shared.to_scheduler.take();
            shared.submission.note_dispatched(tasks.len() as u64);
            thread::yield_now();
            shared.context.push(&mut tasks);
        });
    }
}

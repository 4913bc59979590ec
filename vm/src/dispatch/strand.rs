//! Strands: ordered streams that any thread of their device may run, one thread at a time.
//!
//! A strand is a thread context of one stream without a thread of its own. The threads of a [`ThreadGroup`] serve the strands of one
//! device: a thread takes a strand from the ready queue, runs its tasks in order, and leaves it when nothing of it is ready, or when other
//! strands wait and it has had its turn.
//!
//! The state of a strand says who has to act when the strand gets something to do:
//!
//! | state | meaning | a task is pushed | the point of its head passes |
//! |---|---|---|---|
//! | `IDLE` | no task of it is known | the pusher queues it | - |
//! | `BLOCKED` | its head waits for a point | nothing: the new task is after the head | the passing thread queues it |
//! | `QUEUED` | it is in the ready queue | nothing | nothing |
//! | `SERVED` | a thread serves it, and checks its inbox and its head before it leaves | nothing | nothing |
//!
//! Invariants:
//! * A strand is in the ready queue at most once, because only the thread that changes the state to `QUEUED` pushes it. What it pushes is the
//!   right to serve the strand ([`Queued`]), which becomes that of the serving thread ([`Served`]); neither can be copied.
//! * **No task is forgotten.** A push writes the inbox and then reads the state; a thread that leaves writes the state and then checks the
//!   inbox. Both the push and the check are read-modify-writes of the inbox, so at least one side sees the other (as in `sync/parker.rs`).
//!   A thread that blocks writes the state first and registers for the point then, so the wake-up finds `BLOCKED`.
//! * The run lock alone decides which thread runs the tasks: a caller that helps takes it whatever the state is.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::thread_group::ThreadGroup;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::tasks::task::Level;

const IDLE: u32 = 0;
const BLOCKED: u32 = 1;
const QUEUED: u32 = 2;
const SERVED: u32 = 3;

/// The right to begin to serve a strand. Exactly one exists while the state is `QUEUED`: in the ready queue, then with the thread that took it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "no thread serves a strand whose right is lost"]
pub(crate) struct Queued(u32);

impl Queued {
    /// The number of the strand in its group.
    pub(crate) fn strand(&self) -> u32 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn of(strand: u32) -> Queued {
        Queued(strand)
    }
}

/// The right of the thread that serves a strand. Exactly one exists while the state is `SERVED`.
#[derive(Debug)]
#[must_use = "a strand whose right is lost is never queued again"]
pub(crate) struct Served(u32);

impl Served {
    /// The number of the strand in its group.
    pub(crate) fn strand(&self) -> u32 {
        self.0
    }
}

/// The state of a strand, and the threads that serve it.
pub(crate) struct Strand {
    state: State,
    /// The number of the strand in its group.
    number: u32,
    /// The queue of the group in which it waits for a thread.
    level: Level,
    group: Arc<ThreadGroup>,
    /// The number of the thread that served it last. Written by that thread. A hint for reports; it orders nothing.
    thread: AtomicUsize,
}

impl Strand {
    /// The strand with this number and level in `group`, without tasks.
    pub(crate) fn new(number: u32, level: Level, group: Arc<ThreadGroup>) -> Strand {
        Strand { state: State::default(), number, level, group, thread: AtomicUsize::new(0) }
    }

    /// Whether a pusher must queue the strand, so that its task runs.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.state.0.load(Ordering::SeqCst) == IDLE
    }

    /// Queues the strand if it is idle. The caller has pushed a task.
    pub(crate) fn queue_if_idle(&self) {
        if self.state.leaves(IDLE, QUEUED) {
            self.group.push(Queued(self.number), self.level);
        }
    }

    /// Queues the strand if it is blocked. The point that its head waited for has passed.
    pub(crate) fn unblock(&self) {
        if self.state.leaves(BLOCKED, QUEUED) {
            self.group.push(Queued(self.number), self.level);
        }
    }

    /// The calling thread, number `thread` of the group, serves the strand. It has taken the right from the ready queue.
    pub(crate) fn serve(&self, queued: Queued, thread: usize) -> Served {
        debug_assert_eq!(queued.strand(), self.number, "the right is for another strand");
        self.thread.store(thread, Ordering::Relaxed);
        self.state.0.store(SERVED, Ordering::SeqCst);
        Served(queued.0)
    }

    /// The serving thread puts the strand after the others of its level in the ready queue.
    pub(crate) fn requeue(&self, served: Served) {
        debug_assert_eq!(served.strand(), self.number, "the right is for another strand");
        self.state.0.store(QUEUED, Ordering::SeqCst);
        self.group.push(Queued(served.0), self.level);
    }

    /// The serving thread leaves the strand, which has no task, unless `is_empty` finds one in the inbox. Returns the right if the thread has not
    /// left, and must go on. `is_empty` must be a read-modify-write of the inbox.
    pub(crate) fn leave_idle(&self, served: Served, is_empty: impl FnOnce() -> bool) -> Option<Served> {
        self.state.0.swap(IDLE, Ordering::SeqCst);
        (!is_empty() && self.state.leaves(IDLE, SERVED)).then_some(served)
    }

    /// The serving thread leaves the strand, whose head waits for a point. `register` asks for a call of [`Strand::unblock`] once the point
    /// has passed, and returns false if it has passed already. Returns the right if the thread has not left, and must go on.
    pub(crate) fn leave_blocked(&self, served: Served, register: impl FnOnce() -> bool) -> Option<Served> {
        self.state.0.swap(BLOCKED, Ordering::SeqCst);
        (!register() && self.state.leaves(BLOCKED, SERVED)).then_some(served)
    }

    /// The thread that served the strand last.
    pub(crate) fn last_thread(&self) -> Option<&Arc<ContextHandle>> {
        self.group.thread(self.thread.load(Ordering::Relaxed))
    }

    /// Whether it waits in the ready queue.
    pub(crate) fn is_queued(&self) -> bool {
        self.state.0.load(Ordering::SeqCst) == QUEUED
    }

    /// The threads that may serve it.
    pub(crate) fn group(&self) -> &Arc<ThreadGroup> {
        &self.group
    }
}

/// The state of a strand, on a cache line that only changes when a thread begins or ends to serve it.
#[derive(Default)]
struct State(CachePadded<AtomicU32>);

impl State {
    /// Changes the state from `from` to `to`. Returns whether it was `from`.
    fn leaves(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::dispatch::pool::HIGH;
    use crate::queue::mpsc::MpscQueue;
    use crate::queue::node::{NodeBox, NodeList};
    use crate::sync::{Mutex, unpoisoned};

    /// The point that the head waits for, as the waiters of a stream keep it.
    #[derive(Default)]
    struct Point {
        passed: bool,
        registered: bool,
    }

    struct Shared {
        strand: Strand,
        inbox: MpscQueue<u32>,
        point: Mutex<Point>,
    }

    /// A strand that thread 0 serves.
    fn served() -> (Arc<Shared>, Served) {
        let strand = Strand::new(0, HIGH, std::sync::Arc::new(ThreadGroup::new(1)));
        let served = strand.serve(Queued(0), 0);
        (Arc::new(Shared { strand, inbox: MpscQueue::new(), point: Mutex::default() }), served)
    }

    fn push(shared: &Shared) {
        let mut tasks = NodeList::new();
        tasks.push(NodeBox::new(1));
        shared.inbox.push(&mut tasks);
        if shared.strand.is_idle() {
            shared.strand.queue_if_idle();
        }
    }

    /// While a thread leaves a strand by `leave`, another pushes a task. The strand must be queued, or the thread must stay.
    fn no_task_is_forgotten(leave: fn(&Shared, Served) -> Option<Served>) {
        loom::model(move || {
            let (shared, served) = served();
            let pusher = {
                let shared = shared.clone();
                thread::spawn(move || push(&shared))
            };
            let has_left = leave(&shared, served).is_none();
            pusher.join().expect("the pusher does not panic");
            let queued = shared.strand.group.pop();
            assert!(shared.strand.group.pop().is_none(), "the strand is queued twice");
            assert!(!has_left || queued.is_some(), "the task is forgotten");
            assert!(has_left || queued.is_none(), "a strand that is served is queued");
        });
    }

    #[test]
    fn loom_a_thread_that_leaves_sees_the_task_or_the_pusher_queues_the_strand() {
        no_task_is_forgotten(|shared, served| shared.strand.leave_idle(served, || shared.inbox.is_surely_empty()));
    }

    #[test]
    #[should_panic(expected = "the task is forgotten")]
    fn loom_a_thread_that_checks_before_it_leaves_forgets_a_task() {
        no_task_is_forgotten(|shared, served| {
            let empty = shared.inbox.is_surely_empty();
            shared.strand.leave_idle(served, || empty)
        });
    }

    #[test]
    #[should_panic(expected = "the task is forgotten")]
    fn loom_a_thread_that_leaves_without_a_check_forgets_a_task() {
        no_task_is_forgotten(|shared, served| shared.strand.leave_idle(served, || true));
    }

    #[test]
    #[should_panic(expected = "a strand that is served is queued")]
    fn loom_a_thread_that_takes_a_strand_back_without_an_exchange_shares_it() {
        no_task_is_forgotten(|shared, served| {
            shared.strand.state.0.swap(IDLE, Ordering::SeqCst);
            if shared.inbox.is_surely_empty() {
                return None;
            }
            shared.strand.state.0.store(SERVED, Ordering::SeqCst);
            Some(served)
        });
    }

    /// Two threads push; the strand is idle. It is queued once.
    #[test]
    fn loom_two_pushers_queue_a_strand_once() {
        loom::model(|| {
            let (shared, served) = served();
            assert!(shared.strand.leave_idle(served, || shared.inbox.is_surely_empty()).is_none());
            let pusher = {
                let shared = shared.clone();
                thread::spawn(move || push(&shared))
            };
            push(&shared);
            pusher.join().expect("the pusher does not panic");
            assert_eq!((shared.strand.group.pop(), shared.strand.group.pop()), (Some(Queued(0)), None));
        });
    }

    /// As `no_task_is_forgotten`, for a strand whose head waits for a point that another thread passes.
    fn no_passing_is_missed(leave: fn(&Shared, Served) -> Option<Served>) {
        loom::model(move || {
            let (shared, served) = served();
            let passing = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut point = unpoisoned(shared.point.lock());
                    point.passed = true;
                    let registered = point.registered;
                    drop(point);
                    if registered {
                        shared.strand.unblock();
                    }
                })
            };
            let has_left = leave(&shared, served).is_none();
            passing.join().expect("the passing thread does not panic");
            let queued = shared.strand.group.pop();
            assert!(!has_left || queued.is_some(), "the strand stays blocked");
            assert!(has_left || queued.is_none(), "a strand that is served is queued");
        });
    }

    fn register(shared: &Shared) -> bool {
        let mut point = unpoisoned(shared.point.lock());
        point.registered = !point.passed;
        point.registered
    }

    #[test]
    fn loom_a_blocked_strand_is_queued_when_its_point_passes() {
        no_passing_is_missed(|shared, served| shared.strand.leave_blocked(served, || register(shared)));
    }

    #[test]
    #[should_panic(expected = "the strand stays blocked")]
    fn loom_a_thread_that_registers_before_it_blocks_misses_the_point() {
        no_passing_is_missed(|shared, served| {
            let waits = register(shared);
            shared.strand.leave_blocked(served, || waits)
        });
    }
}

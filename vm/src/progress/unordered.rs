//! Progress of a stream: which instructions have passed, and the waiters for each.
//!
//! An ordered stream has a timeline: one number that grows. On an unordered stream each instruction passes by itself. Its
//! dependence node says whether it has ([`DependenceNodes`]), and its waiters are kept by its number ([`WaiterTree`]).

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use streamvm_stream::Timeline;

use crate::dispatch::dependence_node::{DependenceNodes, NodeId};
use crate::dispatch::pool::Pool;
use crate::progress::waiters::{WaiterTree, Waiters, Wake};
use crate::sync::{AtomicU64, Mutex, Ordering, unpoisoned};

/// The progress of an ordered or an unordered stream.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all streams are ordered, and each of their instructions reads this"
)]
pub(crate) enum Progress {
    /// Instructions pass in order.
    Ordered(Ordered),
    /// Each instruction passes by itself.
    Unordered(Box<Unordered>),
}

/// Progress of an ordered stream.
pub(crate) struct Ordered {
    /// Written by the context that runs the stream, read by all threads.
    pub(crate) timeline: Timeline,
    pub(crate) waiters: Waiters,
}

impl Ordered {
    pub(crate) fn new() -> Ordered {
        Ordered { timeline: Timeline::new(), waiters: Waiters::new() }
    }
}

/// Progress of an unordered stream.
pub(crate) struct Unordered {
    pub(crate) nodes: Arc<DependenceNodes>,
    /// The pool that runs the stream; `None` in inline mode, where the submitter runs it.
    pub(crate) pool: Option<Arc<Pool>>,
    /// How many instructions each worker has passed, one writer per entry; the last entry counts those of all other threads.
    passed: Box<[CachePadded<AtomicU64>]>,
    waiters: Mutex<WaiterTree>,
}

impl Unordered {
    pub(crate) fn new(nodes: Arc<DependenceNodes>, pool: Option<Arc<Pool>>) -> Unordered {
        let workers = pool.as_ref().map_or(0, |pool| pool.workers());
        let passed = (0..=workers).map(|_| CachePadded::default()).collect();
        Unordered { nodes, pool, passed, waiters: Mutex::default() }
    }

    /// Counts an instruction that `worker` is about to pass. Called before the pass, so that a thread which sees the pass sees the
    /// count.
    pub(crate) fn count(&self, worker: usize) {
        let passed = &self.passed[worker];
        passed.store(passed.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Counts an instruction that a thread other than a worker is about to pass.
    pub(crate) fn count_other(&self) {
        self.passed[self.passed.len() - 1].fetch_add(1, Ordering::Release);
    }

    /// Satisfies a dependence of a node from a thread that is not a worker. If it was the last, injects the task into the pool.
    pub(crate) fn satisfy(&self, id: NodeId) {
        if self.nodes.satisfy(id).is_some() {
            self.inject(id);
        }
    }

    /// Injects the task of a node, which can run, into the pool.
    pub(crate) fn inject(&self, id: NodeId) {
        if let (Some(pool), Some(task)) = (&self.pool, self.nodes.take(id)) {
            pool.inject(task);
        }
    }

    /// How many instructions have passed or are about to pass.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.iter().map(|passed| passed.load(Ordering::Acquire)).sum()
    }

    /// Registers `wake` for when the instruction has passed, and returns the id of the waiter.
    ///
    /// # Errors
    /// Gives `wake` back if the instruction has passed.
    pub(crate) fn add(&self, number: u64, wake: Wake) -> Result<u64, Wake> {
        let mut waiters = unpoisoned(self.waiters.lock());
        if self.nodes.has_passed(number) {
            return Err(wake);
        }
        let id = waiters.add(number, wake);
        if !self.nodes.want(number) {
            return Ok(id);
        }
        // It passed between the check and the announcement, so its runner may not wake this waiter.
        waiters.take(number, id).map_or(Ok(id), Err)
    }

    /// Removes a waiter that gave up.
    pub(crate) fn remove(&self, number: u64, id: u64) {
        let gone = unpoisoned(self.waiters.lock()).take(number, id);
        drop(gone);
    }

    /// Wakes all waiters for this number, which has passed.
    pub(crate) fn wake(&self, number: u64) {
        let woken = unpoisoned(self.waiters.lock()).take_all(number, number);
        woken.into_iter().for_each(Wake::wake);
    }

    /// How many waiters there are. Counts them.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn waiters(&self) -> usize {
        unpoisoned(self.waiters.lock()).len()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_stream::StreamId;

    use super::*;
    use crate::sync::parker::Parker;

    #[test]
    fn of_two_waiters_for_one_instruction_the_one_that_gives_up_is_removed() {
        for gone in [0, 1] {
            let nodes = Arc::new(DependenceNodes::new());
            let number = nodes.begin(nodes.add(), StreamId(0), 0).seq;
            let unordered = Unordered::new(nodes, None);
            let parkers = [0, 1].map(|_| Arc::new(Parker::new()));
            let ids = parkers.each_ref().map(|parker| {
                parker.prepare_park();
                unordered.add(number, Wake::Parker(parker.clone())).ok().expect("it has not passed")
            });
            unordered.remove(number, ids[gone]);
            unordered.wake(number);
            assert_eq!(parkers.map(|parker| parker.is_parked()), [gone == 0, gone == 1], "the other is woken");
        }
    }
}

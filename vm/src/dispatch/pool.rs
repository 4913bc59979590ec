//! Pools: the queues of the workers that run one unordered stream, and the idle set in which those workers park.
//!
//! A task that has no open dependence when it is submitted goes through the inbox of the pool's injector. A worker takes all of
//! that inbox into its own queues, from which the other workers steal. A task with open dependences waits in its dependence node.
//! The worker itself is in [`worker`](crate::execute::worker).

use std::sync::Arc;

use crossbeam_deque as deque;
use crossbeam_utils::CachePadded;
use streamvm_ep::Priority;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::idle_set::IdleSet;
use crate::dispatch::urgent_queue::UrgentQueue;
use crate::queue::node::{NodeBox, NodeList};
use crate::tasks::notes::Incomplete;
use crate::tasks::task::{Level, Task};

/// Priority levels that have a queue.
pub(crate) const LEVELS: usize = 3;

/// The level of the highest priority.
pub(crate) const HIGH: Level = 0;

/// The level of a task that the worker which satisfies its last dependence runs next, before all queued tasks. A task that another
/// thread injects at this level is queued at [`HIGH`].
pub(crate) const DIRECT: Level = LEVELS as Level;

/// The level that runs before all priorities; see [`UrgentQueue`].
pub(crate) const URGENT: Level = DIRECT + 1;

/// One pick in so many is a fair pick: of a lower level than the most urgent one that has a task or a strand. Each worker counts its own picks; the
/// threads of a group share one count.
pub(crate) const FAIR_PICK_EVERY: u32 = 16;

/// The level of what has this priority.
pub(crate) fn level_of_priority(priority: Priority) -> Level {
    match priority {
        Priority::High => HIGH,
        Priority::Normal => HIGH + 1,
        Priority::Low => HIGH + 2,
    }
}

/// The queue for `level`: [`HIGH`] for a task that is not run directly.
pub(crate) fn queue_of(level: Level) -> usize {
    usize::from(if level == DIRECT { HIGH } else { level })
}

/// What other threads see of a pool.
pub(crate) struct Pool {
    /// The inbox for ready tasks of other threads, and the parked workers.
    pub(crate) injector: Arc<ContextHandle>,
    /// The workers, as stall reports see them.
    pub(crate) contexts: Vec<Arc<ContextHandle>>,
    /// Asynchronous functions that are not complete, as stall reports see them.
    pub(crate) incomplete: Incomplete,
    /// Deletions of variables.
    pub(crate) urgent: CachePadded<UrgentQueue>,
    /// The stealing ends of the queues of each worker.
    pub(crate) stealers: Vec<[deque::Stealer<NodeBox<Task>>; LEVELS]>,
}

/// The queues of one worker, by level.
pub(crate) type Queues = [deque::Worker<NodeBox<Task>>; LEVELS];

impl Pool {
    /// A pool of `workers` workers, and the queues of each.
    pub(crate) fn new(name: &str, workers: usize) -> (Pool, Vec<Queues>) {
        let contexts: Vec<_> =
            (0..workers).map(|worker| Arc::new(ContextHandle::new(format!("{name}.{worker}")))).collect();
        let queues: Vec<Queues> = (0..workers).map(|_| std::array::from_fn(|_| deque::Worker::new_fifo())).collect();
        let stealers = queues.iter().map(|queues| std::array::from_fn(|level| queues[level].stealer())).collect();
        let idle_set = IdleSet::new(contexts.iter().map(|context| context.parker.clone()));
        let (injector, incomplete) =
            (Arc::new(ContextHandle::injector(name.to_owned(), idle_set)), Incomplete::default());
        let urgent = CachePadded::new(UrgentQueue::new());
        (Pool { injector, contexts, incomplete, urgent, stealers }, queues)
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.contexts.len()
    }

    /// Queues a ready task from a thread that is not a worker of the pool, and wakes a worker if one is parked.
    pub(crate) fn inject(&self, task: NodeBox<Task>) {
        let mut chain = NodeList::new();
        chain.push(task);
        self.injector.inbox.push(&mut chain);
        self.injector.wake();
    }
}

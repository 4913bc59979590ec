//! The urgent queue of a pool: deletions of variables, which run before all priorities.
//!
//! All workers of a pool share one list, so that the first idle worker takes the oldest task. The list is nearly always empty, so a
//! worker usually reads only a count that no thread is writing. A queue per worker would make each pick look into the queues of all
//! other workers.
//!
//! Invariant: `count` is the length of the list, and is written under the list's lock only.

use crate::queue::node::{NodeBox, NodeList};
use crate::sync::{AtomicUsize, Mutex, Ordering, unpoisoned};
use crate::tasks::task::Task;

/// A first-in, first-out list of tasks behind a lock, with its length outside the lock.
pub(crate) struct UrgentQueue {
    count: AtomicUsize,
    tasks: Mutex<NodeList<Task>>,
}

impl UrgentQueue {
    /// An empty queue.
    pub(crate) fn new() -> UrgentQueue {
        UrgentQueue { count: AtomicUsize::new(0), tasks: Mutex::new(NodeList::new()) }
    }

    /// Whether there is a task. A relaxed load: a worker that parks has a fence before it, and a thread that pushes has a fence
    /// after the push ([`IdleSet`](crate::dispatch::idle_set::IdleSet)).
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Adds a task.
    #[cold]
    pub(crate) fn push(&self, task: NodeBox<Task>) {
        let mut tasks = unpoisoned(self.tasks.lock());
        tasks.push(task);
        self.count.store(tasks.len(), Ordering::Relaxed);
    }

    /// Takes the oldest task.
    #[inline]
    pub(crate) fn pop(&self) -> Option<NodeBox<Task>> {
        if self.any() { self.take() } else { None }
    }

    #[cold]
    fn take(&self) -> Option<NodeBox<Task>> {
        let mut tasks = unpoisoned(self.tasks.lock());
        let task = tasks.pop();
        self.count.store(tasks.len(), Ordering::Relaxed);
        task
    }
}

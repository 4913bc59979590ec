//! What goes before every priority in a pool: the ends of variables.
//!
//! One list for all workers of a pool, so that whichever comes first takes the oldest. There is nearly never something in it, so
//! a worker looks at a count that nobody writes, and a queue of its own for it would have each pick look into those of all
//! others too.
//!
//! Invariant: the count is that of the list, and is written under its lock alone.

use crate::job::Job;
use crate::slot::{Chain, Slot};
use crate::sync::{AtomicUsize, Mutex, Ordering, unpoisoned};

/// See the module's comment.
pub(crate) struct First {
    count: AtomicUsize,
    jobs: Mutex<Chain<Job>>,
}

impl First {
    /// Nothing yet.
    pub(crate) fn new() -> First {
        First { count: AtomicUsize::new(0), jobs: Mutex::new(Chain::new()) }
    }

    /// Whether there is something. Before it sleeps a worker has a fence in front of this, and who puts something in one behind that.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Puts something in.
    #[cold]
    pub(crate) fn push(&self, job: Slot<Job>) {
        let mut jobs = unpoisoned(self.jobs.lock());
        jobs.push(job);
        self.count.store(jobs.len(), Ordering::Relaxed);
    }

    /// Takes the oldest.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Slot<Job>> {
        if self.any() { self.take() } else { None }
    }

    #[cold]
    fn take(&self) -> Option<Slot<Job>> {
        let mut jobs = unpoisoned(self.jobs.lock());
        let job = jobs.pop();
        self.count.store(jobs.len(), Ordering::Relaxed);
        job
    }
}

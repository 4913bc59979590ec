//! Outboxes: jobs sorted by the thread context that runs them, handed over as one batch each.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::context::ContextShared;
use crate::job::Job;
use crate::slot::{Chain, Slot};

/// Batches being put together. The entries stay between uses, so steady use allocates nothing.
pub(crate) struct Outbox {
    batches: Vec<(Arc<ContextShared>, Chain<Job>)>,
    /// The batches that hold a job, then those that were pushed and whose contexts may have to be woken.
    filled: Vec<usize>,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox { batches: Vec::new(), filled: Vec::new() }
    }

    /// The number of the batch for `context`.
    pub(crate) fn batch_for(&mut self, context: &Arc<ContextShared>) -> usize {
        let known = self.batches.iter().position(|(known, _)| Arc::ptr_eq(known, context));
        known.unwrap_or_else(|| {
            self.batches.push((context.clone(), Chain::new()));
            self.batches.len() - 1
        })
    }

    /// Adds a job to a batch.
    #[inline]
    pub(crate) fn add(&mut self, batch: usize, job: Slot<Job>) {
        let chain = &mut self.batches[batch].1;
        if chain.is_empty() {
            self.filled.push(batch);
        }
        chain.push(job);
    }

    /// Puts each batch into its context's inbox. Quick: no system call. Returns whether one of the contexts sleeps; if none does,
    /// nobody has to be woken, and they are forgotten.
    #[inline]
    #[must_use = "who sleeps must be woken"]
    pub(crate) fn push(&mut self) -> bool {
        let mut sleeps = false;
        for index in &self.filled {
            let (context, batch) = &mut self.batches[*index];
            context.inbox.push(batch);
            sleeps |= context.is_sleeping();
        }
        if !sleeps {
            self.filled.clear();
        }
        sleeps
    }

    /// Wakes the contexts that got a batch, if they sleep: maybe a system call each.
    pub(crate) fn wake(&mut self) {
        for index in self.filled.drain(..) {
            self.batches[index].0.wake();
        }
    }

    /// The contexts to wake, for a caller that leaves a lock first.
    pub(crate) fn sleepers(&mut self) -> SmallVec<[Arc<ContextShared>; 2]> {
        let contexts = self.filled.drain(..).map(|index| &self.batches[index].0);
        contexts.filter(|context| context.is_sleeping()).cloned().collect()
    }
}

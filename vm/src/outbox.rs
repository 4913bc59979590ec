//! Outboxes: jobs sorted by the thread context that runs them, handed over as one batch each.

use std::sync::Arc;

use crate::context::ContextShared;
use crate::job::Job;
use crate::slot::{Chain, Slot};

/// Batches being put together. The entries stay between uses, so steady use allocates nothing.
pub(crate) struct Outbox {
    batches: Vec<(Arc<ContextShared>, Chain<Job>)>,
    /// Which batches were pushed and whose contexts may have to be woken.
    pushed: Vec<usize>,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        Outbox { batches: Vec::new(), pushed: Vec::new() }
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
        self.batches[batch].1.push(job);
    }

    /// Puts each batch into its context's inbox. Quick: no system call.
    pub(crate) fn push(&mut self) {
        for (index, (context, batch)) in self.batches.iter_mut().enumerate() {
            if !batch.is_empty() {
                context.inbox.push(batch);
                self.pushed.push(index);
            }
        }
    }

    /// Wakes the contexts that got a batch, if they sleep: maybe a system call each.
    pub(crate) fn wake(&mut self) {
        for index in self.pushed.drain(..) {
            self.batches[index].0.sleeper.wake();
        }
    }

    /// The contexts to wake, for a caller that leaves a lock first.
    pub(crate) fn take_sleepers(&mut self, sleepers: &mut smallvec::SmallVec<[Arc<crate::sleep::Sleeper>; 2]>) {
        for index in self.pushed.drain(..) {
            let sleeper = &self.batches[index].0.sleeper;
            if sleeper.is_sleeping() {
                sleepers.push(sleeper.clone());
            }
        }
    }
}

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

    /// Asks for what the next job is put into.
    #[inline]
    pub(crate) fn fetch(&self, batch: usize) {
        self.batches[batch].0.inbox.fetch();
    }

    /// Puts a job into a context's inbox at once, where nothing was added. Returns whether the context sleeps, as
    /// [`Outbox::push`] does.
    #[inline]
    #[must_use = "who sleeps must be woken"]
    pub(crate) fn push_one(&mut self, batch: usize, job: Slot<Job>) -> bool {
        debug_assert!(self.filled.is_empty(), "nothing is left behind");
        let context = &self.batches[batch].0;
        context.inbox.push_one(job);
        let sleeps = context.is_sleeping();
        if sleeps {
            self.filled.push(batch);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::job::Job;

    /// Whoever sleeps when its batch lies in its inbox is to be woken, and nobody else.
    #[test]
    fn who_sleeps_behind_a_push_is_to_be_woken() {
        let contexts = ["one", "two"].map(|name| Arc::new(ContextShared::new(name.into())));
        let mut outbox = Outbox::new();
        let push = |outbox: &mut Outbox| {
            for context in &contexts {
                let batch = outbox.batch_for(context);
                outbox.add(batch, Slot::new(Job::empty()));
            }
            outbox.push()
        };
        assert!(!push(&mut outbox));
        contexts[1].sleeper.prepare();
        assert!(outbox.sleepers().is_empty(), "it was awake, and finds the batch when it looks once more");
        assert!(push(&mut outbox));
        let sleepers = outbox.sleepers();
        assert!(matches!(&*sleepers, [only] if Arc::ptr_eq(only, &contexts[1])));
        assert!(contexts.iter().all(|context| context.inbox.take().len() == 2));
    }
}

//! Outboxes: jobs sorted by the thread context that runs them, handed over as one batch each; a submitter's only job goes by itself.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::context_shared::ContextShared;
use crate::intake::Intake;
use crate::job::Job;
use crate::ring::Feed;
use crate::slot::{Chain, Slot};

/// Batches being put together. The entries stay between uses, so steady use allocates nothing.
pub(crate) struct Outbox {
    batches: Vec<Batch>,
    /// The batches that hold a job, then those that were pushed and whose contexts may have to be woken.
    filled: Vec<usize>,
    /// Whether its jobs may go one by one: those of submitters, who hold the submission lock.
    has_feeds: bool,
}

struct Batch {
    context: Arc<ContextShared>,
    jobs: Chain<Job>,
    feed: Option<Feed<Job>>,
}

impl Outbox {
    /// One whose jobs go as batches only.
    pub(crate) fn new() -> Outbox {
        Outbox { batches: Vec::new(), filled: Vec::new(), has_feeds: false }
    }

    /// The outbox of all submitters.
    pub(crate) fn of_submitters() -> Outbox {
        Outbox { has_feeds: true, ..Outbox::new() }
    }

    /// The number of the batch for `context`.
    pub(crate) fn batch_for(&mut self, context: &Arc<ContextShared>) -> usize {
        let known = self.batches.iter().position(|known| Arc::ptr_eq(&known.context, context));
        known.unwrap_or_else(|| {
            let feed = if self.has_feeds { context.intake.as_ref().and_then(Intake::feed) } else { None };
            self.batches.push(Batch { context: context.clone(), jobs: Chain::new(), feed });
            self.batches.len() - 1
        })
    }

    /// Adds a job to a batch.
    #[inline]
    pub(crate) fn add(&mut self, batch: usize, job: Slot<Job>) {
        let chain = &mut self.batches[batch].jobs;
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
            let Batch { context, jobs, .. } = &mut self.batches[*index];
            context.send(jobs);
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
        if let Some(feed) = &self.batches[batch].feed {
            feed.fetch();
        }
    }

    /// Hands a context its job at once, where nothing was added. Returns whether the context sleeps, as [`Outbox::push`] does.
    #[inline]
    #[must_use = "who sleeps must be woken"]
    pub(crate) fn push_one(&mut self, batch: usize, job: Slot<Job>) -> bool {
        debug_assert!(self.filled.is_empty(), "nothing is left behind");
        let Batch { context, feed, .. } = &mut self.batches[batch];
        let left = match feed {
            Some(feed) if context.intake.as_ref().is_some_and(Intake::are_next) => feed.put(job).err(),
            _ => Some(job),
        };
        if let Some(job) = left {
            context.send_one(job);
        }
        let sleeps = context.is_sleeping();
        if sleeps {
            self.filled.push(batch);
        }
        sleeps
    }

    /// Wakes the contexts that got a batch, if they sleep: maybe a system call each.
    pub(crate) fn wake(&mut self) {
        for index in self.filled.drain(..) {
            self.batches[index].context.wake();
        }
    }

    /// The contexts to wake, for a caller that leaves a lock first.
    pub(crate) fn sleepers(&mut self) -> SmallVec<[Arc<ContextShared>; 2]> {
        let contexts = self.filled.drain(..).map(|index| &self.batches[index].context);
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

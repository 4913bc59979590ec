//! Dispatch batches: tasks grouped by the thread context that runs them, and handed over as one list per context.
//!
//! A [`DispatchBatches`] belongs to one thread, or is used under the submission lock.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::dispatch::context_handle::ContextHandle;
use crate::queue::node::{NodeBox, NodeList};
use crate::tasks::task::Task;

/// Batches under construction. The entries stay between uses, so steady use allocates nothing.
pub(crate) struct DispatchBatches {
    batches: Vec<Batch>,
    /// The batches that hold a task; after a push, those whose contexts may have to be woken.
    filled: Vec<usize>,
}

struct Batch {
    context: Arc<ContextHandle>,
    tasks: NodeList<Task>,
}

impl DispatchBatches {
    /// Batches of no context yet.
    pub(crate) fn new() -> DispatchBatches {
        DispatchBatches { batches: Vec::new(), filled: Vec::new() }
    }

    /// The index of the batch for `context`.
    pub(crate) fn batch_for(&mut self, context: &Arc<ContextHandle>) -> usize {
        let known = self.batches.iter().position(|known| Arc::ptr_eq(&known.context, context));
        known.unwrap_or_else(|| {
            self.batches.push(Batch { context: context.clone(), tasks: NodeList::new() });
            self.batches.len() - 1
        })
    }

    /// Adds a task to a batch.
    #[inline]
    pub(crate) fn add(&mut self, batch: usize, task: NodeBox<Task>) {
        let list = &mut self.batches[batch].tasks;
        if list.is_empty() {
            self.filled.push(batch);
        }
        list.push(task);
    }

    /// Pushes each batch into its context's inbox. Fast: no system call. Returns whether one of the contexts is parked; the caller
    /// must then call [`DispatchBatches::wake`], or wake those of [`DispatchBatches::parkers`]. If none is parked, the list of
    /// contexts is cleared.
    #[inline]
    #[must_use = "a parked context that got a batch must be woken"]
    pub(crate) fn push(&mut self) -> bool {
        let mut sleeps = false;
        for index in &self.filled {
            let Batch { context, tasks } = &mut self.batches[*index];
            context.send(tasks);
            sleeps |= context.is_parked();
        }
        if !sleeps {
            self.filled.clear();
        }
        sleeps
    }

    /// Wakes the contexts that got a batch and are parked. Up to one system call each.
    pub(crate) fn wake(&mut self) {
        for index in self.filled.drain(..) {
            self.batches[index].context.wake();
        }
    }

    /// The contexts to wake, for a caller that releases a lock first.
    pub(crate) fn parkers(&mut self) -> SmallVec<[Arc<ContextHandle>; 2]> {
        let contexts = self.filled.drain(..).map(|index| &self.batches[index].context);
        contexts.filter(|context| context.is_parked()).cloned().collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tasks::task::Task;

    /// Exactly the contexts that are parked when their batch is pushed have to be woken.
    #[test]
    fn a_context_that_is_parked_when_its_batch_is_pushed_must_be_woken() {
        let contexts = ["one", "two"].map(|name| Arc::new(ContextHandle::new(name.into())));
        let mut batches = DispatchBatches::new();
        let push = |batches: &mut DispatchBatches| {
            for context in &contexts {
                let batch = batches.batch_for(context);
                batches.add(batch, NodeBox::new(Task::empty()));
            }
            batches.push()
        };
        assert!(!push(&mut batches));
        contexts[1].parker.prepare_park();
        assert!(batches.parkers().is_empty(), "it was awake, and finds the batch in its second check");
        assert!(push(&mut batches));
        let parkers = batches.parkers();
        assert!(matches!(&*parkers, [only] if Arc::ptr_eq(only, &contexts[1])));
        assert!(contexts.iter().all(|context| context.inbox.take().len() == 2));
    }
}

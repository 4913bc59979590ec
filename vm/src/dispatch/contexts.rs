//! The thread contexts and workers of one engine.

use std::sync::Arc;

use crate::dispatch::context_handle::ContextHandle;
use crate::sync::{Mutex, Ordering, unpoisoned};

/// A list that grows as streams are opened, behind a lock of its own.
#[derive(Default)]
pub(crate) struct Contexts(Mutex<Vec<Arc<ContextHandle>>>);

impl Contexts {
    /// Adds a context.
    pub(crate) fn add(&self, context: Arc<ContextHandle>) {
        unpoisoned(self.0.lock()).push(context);
    }

    /// Removes a context whose thread could not be started.
    pub(crate) fn remove(&self, context: &Arc<ContextHandle>) {
        unpoisoned(self.0.lock()).retain(|other| !Arc::ptr_eq(other, context));
    }

    /// All contexts, workers included.
    pub(crate) fn all(&self) -> Vec<Arc<ContextHandle>> {
        unpoisoned(self.0.lock()).clone()
    }

    /// Total bytes that the passed instructions of all contexts have given up.
    pub(crate) fn retired_bytes(&self) -> u64 {
        unpoisoned(self.0.lock()).iter().map(|context| context.retired_bytes.load(Ordering::Acquire)).sum()
    }

    /// Instructions that callers have run while they waited.
    pub(crate) fn helped(&self) -> u64 {
        unpoisoned(self.0.lock()).iter().map(|context| context.helped.load(Ordering::Relaxed)).sum()
    }

    /// At least how many parts of the engine pass instructions: contexts, workers, and the completion thread. The threads that serve strands
    /// are counted beside the strands.
    pub(crate) fn passing(&self) -> u64 {
        unpoisoned(self.0.lock()).len() as u64 + 1
    }

    pub(crate) fn wake_all(&self) {
        unpoisoned(self.0.lock()).iter().for_each(|context| context.parker.wake());
    }
}

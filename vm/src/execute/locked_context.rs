//! A thread context and its run lock.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use streamvm_ep as ep;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::strand::Strand;
use crate::execute::context::Context;
use crate::progress::stream_state::StreamState;
use crate::sync::{Mutex, unpoisoned};

/// A thread context, with everything that is needed to run it. Only the holder of the run lock runs it.
pub(crate) struct LockedContext {
    /// What other threads see of the context.
    pub(crate) handle: Arc<ContextHandle>,
    /// The run lock. It holds the context while a thread serves it.
    pub(crate) run_lock: CachePadded<Mutex<Option<Context>>>,
    /// Streams that were opened for this context. A stream is added before its first task is sent.
    pub(crate) opened: Arc<Mutex<Vec<Opened>>>,
}

/// An opened stream that its context has not taken over yet.
pub(crate) struct Opened {
    pub(crate) stream_state: Arc<StreamState>,
    pub(crate) stream: Box<dyn ep::Stream>,
}

impl LockedContext {
    /// A context with this name that no thread serves yet.
    pub(crate) fn new(name: String) -> LockedContext {
        LockedContext {
            handle: Arc::new(ContextHandle::new(name)),
            run_lock: CachePadded::default(),
            opened: Arc::default(),
        }
    }

    /// A context that the threads of a group serve.
    pub(crate) fn strand(name: String, strand: Strand) -> LockedContext {
        let handle = Arc::new(ContextHandle::strand(name, strand));
        let locked = LockedContext { handle, run_lock: CachePadded::default(), opened: Arc::default() };
        *unpoisoned(locked.run_lock.lock()) = Some(Context::new(&locked));
        locked
    }

    /// Adds a stream for the context to run.
    pub(crate) fn add_stream(&self, stream_state: Arc<StreamState>, stream: Box<dyn ep::Stream>) {
        unpoisoned(self.opened.lock()).push(Opened { stream_state, stream });
    }
}

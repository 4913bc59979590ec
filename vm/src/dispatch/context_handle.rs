//! The part of a thread context that other threads see: its inbox, its parker, and its notes for reports.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::dispatch::idle_set::IdleSet;
use crate::queue::mpsc::MpscQueue;
use crate::queue::node::NodeList;
use crate::sync::parker::Parker;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use crate::tasks::counters::OpCounters;
use crate::tasks::notes::{Board, Running};
use crate::tasks::task::Task;

/// The part of a thread context, a worker or a pool's injector that all threads share.
pub(crate) struct ContextHandle {
    pub(crate) name: String,
    pub(crate) inbox: MpscQueue<Task>,
    pub(crate) parker: Arc<Parker>,
    /// The context's thread waits for the run lock, so callers must not take it. A hint; it orders no other access.
    pub(crate) wants_run_lock: CachePadded<AtomicBool>,
    /// Instructions that callers have run while they waited. Written under the run lock.
    pub(crate) helped: AtomicU64,
    /// The task that it runs, for stall reports.
    pub(crate) running: Running,
    /// The tasks that it cannot run yet, for stall reports.
    pub(crate) heads: Board,
    /// The parked threads, where several threads serve one inbox.
    pub(crate) idle_set: Option<IdleSet>,
    /// Counts of what it has run, in an engine that profiles.
    pub(crate) op_counters: Mutex<OpCounters>,
    /// Total bytes that passed instructions have given up. Only the holder of the run lock writes it, before it publishes their
    /// numbers.
    pub(crate) retired_bytes: CachePadded<AtomicU64>,
}

impl ContextHandle {
    /// The handle of a context that runs ordered streams, or of a worker.
    pub(crate) fn new(name: String) -> ContextHandle {
        ContextHandle {
            name,
            inbox: MpscQueue::new(),
            parker: Arc::new(Parker::new()),
            wants_run_lock: CachePadded::new(AtomicBool::new(false)),
            helped: AtomicU64::new(0),
            running: Running::default(),
            heads: Board::default(),
            idle_set: None,
            op_counters: Mutex::default(),
            retired_bytes: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The injector of a pool, whose workers park in `idle_set`.
    pub(crate) fn injector(name: String, idle_set: IdleSet) -> ContextHandle {
        ContextHandle { idle_set: Some(idle_set), ..ContextHandle::new(name) }
    }

    /// Pushes a batch into the inbox. Does not wake the context.
    #[inline]
    pub(crate) fn send(&self, tasks: &mut NodeList<Task>) {
        self.inbox.push(tasks);
    }

    /// Whether a thread must be woken to see what was put into the inbox.
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        match &self.idle_set {
            None => self.parker.is_parked(),
            Some(idle_set) => idle_set.any_parked(),
        }
    }

    /// Wakes the thread that takes from the inbox; one of them where there are several.
    pub(crate) fn wake(&self) {
        match &self.idle_set {
            None => self.parker.wake(),
            Some(idle_set) => idle_set.wake_one(),
        }
    }
}

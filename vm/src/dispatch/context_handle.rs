//! The part of a thread context that other threads see: its inbox, its parker, and its notes for reports.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::dispatch::idle_set::IdleSet;
use crate::dispatch::strand::Strand;
use crate::queue::mpsc::MpscQueue;
use crate::queue::node::NodeList;
use crate::sync::parker::Parker;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use crate::tasks::counters::OpCounters;
use crate::tasks::events::{Events, RanList};
use crate::tasks::notes::{Board, Running};
use crate::tasks::task::Task;

/// The threads that take tasks from the inbox of a [`ContextHandle`].
pub(crate) enum Server {
    /// One thread, which parks in the parker of the handle.
    Thread,
    /// The workers of a pool, which park in this set.
    Workers(IdleSet),
    /// The threads of a group, one at a time.
    Strand(Strand),
}

/// The part of a thread context, a worker or a pool's injector that all threads share.
pub(crate) struct ContextHandle {
    pub(crate) name: String,
    pub(crate) inbox: MpscQueue<Task>,
    pub(crate) parker: Arc<Parker>,
    /// A thread of the engine waits for the run lock, so callers must not take it. A hint; it orders no other access.
    pub(crate) wants_run_lock: CachePadded<AtomicBool>,
    /// Instructions that callers have run while they waited. Written under the run lock.
    pub(crate) helped: AtomicU64,
    /// The task that it runs, for stall reports.
    pub(crate) running: Running,
    /// The tasks that it cannot run yet, for stall reports.
    pub(crate) heads: Board,
    /// The threads that take from the inbox.
    server: Server,
    /// Counts of what it has run, in an engine that profiles.
    pub(crate) op_counters: Mutex<OpCounters>,
    /// What it has run lately, in an engine that is traced.
    pub(crate) events: Events<RanList>,
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
            server: Server::Thread,
            op_counters: Mutex::default(),
            events: Events::default(),
            retired_bytes: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The injector of a pool, whose workers park in `idle_set`.
    pub(crate) fn injector(name: String, idle_set: IdleSet) -> ContextHandle {
        ContextHandle { server: Server::Workers(idle_set), ..ContextHandle::new(name) }
    }

    /// The handle of a context that the threads of a group serve.
    pub(crate) fn strand(name: String, strand: Strand) -> ContextHandle {
        ContextHandle { server: Server::Strand(strand), ..ContextHandle::new(name) }
    }

    /// Its strand, if the threads of a group serve it.
    pub(crate) fn as_strand(&self) -> Option<&Strand> {
        match &self.server {
            Server::Strand(strand) => Some(strand),
            Server::Thread | Server::Workers(_) => None,
        }
    }

    /// The parked workers, if workers take from the inbox.
    pub(crate) fn idle_set(&self) -> Option<&IdleSet> {
        match &self.server {
            Server::Workers(idle_set) => Some(idle_set),
            Server::Thread | Server::Strand(_) => None,
        }
    }

    /// The counts of the thread that runs its tasks.
    pub(crate) fn counters(&self) -> &Mutex<OpCounters> {
        let thread = self.as_strand().and_then(Strand::last_thread);
        thread.map_or(&self.op_counters, |thread| &thread.op_counters)
    }

    /// The events of the thread that runs its tasks.
    pub(crate) fn events(&self) -> &Events<RanList> {
        let thread = self.as_strand().and_then(Strand::last_thread);
        thread.map_or(&self.events, |thread| &thread.events)
    }

    /// Pushes a batch into the inbox. Does not wake the context.
    #[inline]
    pub(crate) fn send(&self, tasks: &mut NodeList<Task>) {
        self.inbox.push(tasks);
    }

    /// Whether the caller, which has pushed into the inbox, must call [`ContextHandle::wake`].
    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        match &self.server {
            Server::Thread => self.parker.is_parked(),
            Server::Workers(idle_set) => idle_set.any_parked(),
            Server::Strand(strand) => strand.is_idle(),
        }
    }

    /// Makes a thread take from the inbox: wakes one that is parked, or queues the strand.
    pub(crate) fn wake(&self) {
        match &self.server {
            Server::Thread => self.parker.wake(),
            Server::Workers(idle_set) => idle_set.wake_one(),
            Server::Strand(strand) => strand.queue_if_idle(),
        }
    }
}

//! Parking and waking of engine threads.
//!
//! No wake-up is lost. The protocol, for a thread S that parks and a waker W:
//!
//! ```text
//! S: sleeping := true              W: push to an inbox, or publish a number
//! S: check for work again          W: if sleeping { sleeping := false; unpark }
//! S: none: park while sleeping
//! ```
//!
//! W's push or publication and S's second check are read-modify-writes of one location
//! ([`MpscQueue::push`](crate::queue::mpsc::MpscQueue::push) and `is_surely_empty`; `Timeline::advance` and `want`), so they are
//! ordered: either S finds the work, or W reads from S's operation and therefore sees `sleeping`.
//!
//! A waker that finds the thread awake pays one load; only the waker that clears the flag pays for the system call. The loom models
//! in `queue/parker_tests.rs` check the protocol, and show that a check before the announcement, or by a plain load, loses
//! wake-ups.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, Ordering, Thread, current, park};

/// The parking state of one thread. Only that thread calls [`Parker::prepare_park`], [`Parker::cancel_park`] and [`Parker::sleep`];
/// any thread may call [`Parker::wake`].
#[derive(Debug)]
pub(crate) struct Parker {
    /// Read by every push, so it has a cache line of its own.
    sleeping: CachePadded<AtomicBool>,
    thread: OnceLock<Thread>,
}

impl Parker {
    /// A parker that no thread owns yet.
    pub(crate) fn new() -> Parker {
        Parker { sleeping: CachePadded::new(AtomicBool::new(false)), thread: OnceLock::new() }
    }

    /// Makes the current thread the owner. Must be called before that thread first parks.
    pub(crate) fn belongs_here(&self) {
        // A second owner would be a bug of the caller; the first one stays.
        let _ = self.thread.set(current());
    }

    /// Announces that the thread is about to park. The thread must then check for work once more, and call [`Parker::cancel_park`]
    /// if there is some, else [`Parker::sleep`].
    pub(crate) fn prepare_park(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    /// Withdraws the announcement.
    pub(crate) fn cancel_park(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Parks until another thread calls [`Parker::wake`]. Blocks.
    pub(crate) fn sleep(&self) {
        while self.sleeping.load(Ordering::SeqCst) {
            park();
        }
    }

    /// Whether the thread is parked or about to park. If so, it must be woken to see work that was published before this call.
    pub(crate) fn is_parked(&self) -> bool {
        self.sleeping.load(Ordering::SeqCst)
    }

    /// Wakes the thread if it is parked or about to park. The caller must have published the work before this call.
    pub(crate) fn wake(&self) {
        if self.is_parked()
            && self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

//! Parking and waking of engine threads.
//!
//! A [`Parker`] belongs to one thread. The flag `sleeping` announces that this thread is parked or about to park. A *waker* is any thread
//! that has made work for it:
//!
//! | the thread that parks | a waker |
//! |---|---|
//! | 1. sets `sleeping` | 1. pushes a task into the thread's inbox, or publishes the number that the thread waits for |
//! | 2. checks once more for work | 2. if `sleeping` is set: clears it, and unparks the thread |
//! | 3. without work: parks until `sleeping` is cleared | |
//!
//! **No wake-up is lost**, because the waker's first step and the thread's second one are read-modify-writes of one location, so one of
//! them comes first. If the waker's comes first, the thread finds the work. If the thread's comes first, the waker reads from it, and
//! therefore sees `sleeping`. The location is
//! * the head of an inbox: [`MpscQueue::push`](crate::queue::mpsc::MpscQueue::push) and `is_surely_empty`; or
//! * the number of a timeline: `Timeline::advance` and `Timeline::want`.
//!
//! A thread that waits for something else (a strand in a ready queue, a task in the queues of workers) has a protocol of its own around its
//! parker: `dispatch/thread_group.rs`, `dispatch/idle_set.rs`.
//!
//! A waker that finds the thread awake pays one load; only the waker that clears the flag pays for the system call. The loom models
//! in `queue/parker_tests.rs` check the protocol, and show that wake-ups are lost if the thread checks before it sets `sleeping`, or
//! checks by a plain load.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, Ordering, Thread, current, park};

/// Parks and wakes one thread. Only that thread calls [`Parker::prepare_park`], [`Parker::cancel_park`] and [`Parker::sleep`];
/// any thread may call [`Parker::wake`].
#[derive(Debug)]
pub(crate) struct Parker {
    /// The thread is parked or about to park. Each push reads it, so it has a cache line of its own.
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

    /// Whether the thread is parked or about to park. Then a caller that has published work for it must call [`Parker::wake`].
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

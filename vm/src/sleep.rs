//! Sleeping and waking of engine threads.
//!
//! The protocol, for a sleeper S and a waker W:
//!
//! ```text
//! S: sleeping := true        W: make work visible (push to an inbox, publish a number)
//! S: look for work again     W: if sleeping { sleeping := false; unpark }
//! S: none: park while sleeping
//! ```
//!
//! All four accesses are `SeqCst`: either S sees the work or W sees `sleeping`. A waker that finds the sleeper awake
//! costs one load; only the waker that clears the flag pays for the system call. loom model: `tests/loom_sleep.rs` of this
//! crate's sources (`make loom`).

use std::sync::OnceLock;

use crate::sync::{AtomicBool, Ordering, Thread, park};

/// One thread's bed. The thread itself calls [`Sleeper::prepare`] and [`Sleeper::sleep`]; anyone calls
/// [`Sleeper::wake`].
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// A bed that nobody lies in yet.
    pub(crate) fn new() -> Sleeper {
        Sleeper { sleeping: AtomicBool::new(false), thread: OnceLock::new() }
    }

    /// Names the thread that sleeps here, before it first does.
    pub(crate) fn belongs_to(&self, thread: Thread) {
        // A second thread would be a bug of the caller; the first one keeps the bed.
        let _ = self.thread.set(thread);
    }

    /// Announces the wish to sleep. The thread must look for work once more before it calls [`Sleeper::sleep`], and
    /// call [`Sleeper::cancel`] instead if it finds some.
    pub(crate) fn prepare(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub(crate) fn cancel(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Sleeps until woken.
    pub(crate) fn sleep(&self) {
        while self.sleeping.load(Ordering::SeqCst) {
            park();
        }
    }

    /// Whether the thread sleeps or is about to: then it must be woken to see what was made visible before.
    pub(crate) fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::SeqCst)
    }

    /// Wakes the thread if it sleeps or is about to; what it should see must be visible already.
    pub(crate) fn wake(&self) {
        if self.is_sleeping()
            && self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

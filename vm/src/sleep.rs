//! Sleeping and waking of engine threads.
//!
//! The protocol, for a sleeper S and a waker W:
//!
//! ```text
//! S: sleeping := true              W: push to an inbox, or publish a number
//! S: look again                    W: if sleeping { sleeping := false; unpark }
//! S: nothing: park while sleeping
//! ```
//!
//! W's push or publication and S's second look are read-modify-writes of one location
//! ([`Inbox::push`](crate::inbox::Inbox::push) and `is_surely_empty`; `Timeline::advance` and `want`), so one of them
//! comes first: either S finds the work, or W's reads from S's and W sees `sleeping`. Where W only stores, into a
//! [ring](crate::ring), it holds the submission lock from before the store until behind its look at `sleeping`, and S's second
//! look is made under that lock: again one of them comes first. A waker that finds the sleeper awake
//! costs one load; only the waker that clears the flag pays for the system call. The loom models below show it, and that
//! a look before the announcement, or by a plain load, can be missed.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicBool, Ordering, Thread, current, park};

/// One thread's bed. The thread itself calls [`Sleeper::prepare`] and [`Sleeper::sleep`]; anyone calls
/// [`Sleeper::wake`].
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Read with every push.
    sleeping: CachePadded<AtomicBool>,
    thread: OnceLock<Thread>,
}

impl Sleeper {
    /// A bed that nobody lies in yet.
    pub(crate) fn new() -> Sleeper {
        Sleeper { sleeping: CachePadded::new(AtomicBool::new(false)), thread: OnceLock::new() }
    }

    /// Names this thread as the one that sleeps here, before it first does.
    pub(crate) fn belongs_here(&self) {
        // A second thread would be a bug of the caller; the first one keeps the bed.
        let _ = self.thread.set(current());
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

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::inbox::Inbox;
    use crate::slot::{Chain, Slot};

    type Shared = (Inbox<u32>, Sleeper);

    /// A taker that decides by `goes_to_bed` whether it may park, and a pusher that wakes it. A taker that parked while
    /// its flag stays set would sleep for ever.
    fn never_missed(goes_to_bed: fn(&Shared) -> bool) {
        loom::model(move || {
            let shared: Arc<Shared> = Arc::new((Inbox::new(), Sleeper::new()));
            let pusher = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut chain = Chain::new();
                    chain.push(Slot::new(1));
                    shared.0.push(&mut chain);
                    shared.1.wake();
                })
            };
            let parks = goes_to_bed(&shared);
            pusher.join().expect("the pusher does not panic");
            let found = !shared.0.take().is_empty();
            assert!(found, "the push is there in the end");
            assert!(!(parks && shared.1.is_sleeping()), "it parked and was not woken");
        });
    }

    #[test]
    fn loom_a_push_wakes_a_taker_that_falls_asleep() {
        never_missed(|(inbox, sleeper)| {
            sleeper.prepare();
            inbox.is_surely_empty()
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_taker_that_looks_before_it_announces_itself_is_missed() {
        never_missed(|(inbox, sleeper)| {
            let empty = inbox.is_surely_empty();
            sleeper.prepare();
            empty
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_taker_that_looks_by_a_plain_load_is_missed() {
        never_missed(|(inbox, sleeper)| {
            sleeper.prepare();
            inbox.is_empty()
        });
    }
}

//! [`ThreadSlot`]: where the calls of one thread are kept.
//!
//! A submission may take long, for example to compile a program. So whoever submits held-back calls takes them out of the slot and returns them
//! afterwards, and nobody waits with the lock of a slot held. Others that need the calls meanwhile wait until they are returned, with a deadline.

use std::ops::{Deref, DerefMut};

use streamvm_instructions::{Deadline, Error};

use crate::automatic::thread_calls::ThreadCalls;
use crate::engine::core::Engine;
use crate::sync::{Condvar, Mutex, MutexGuard, Ordering, unpoisoned};

/// How long to wait while another thread submits the calls of a slot.
#[derive(Copy, Clone, Debug)]
pub(super) enum Patience {
    /// Not at all, because this is a thread of the engine.
    None,
    /// Until the deadline, if there is one.
    Until(Option<Deadline>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct ThreadSlot {
    contents: Mutex<Contents>,
    returned: Condvar,
}

#[derive(Debug)]
struct Contents {
    /// `None` while a thread submits the calls.
    calls: Option<Box<ThreadCalls>>,
    /// How many threads wait until the calls are returned. To notify a condition variable is a call of the system, also if nobody waits.
    waiting: usize,
}

impl Default for ThreadSlot {
    fn default() -> ThreadSlot {
        let contents = Contents { calls: Some(Box::default()), waiting: 0 };
        ThreadSlot { contents: Mutex::new(contents), returned: Condvar::new() }
    }
}

/// The calls of a thread, locked: for work that waits for nothing.
pub(super) struct Locked<'a> {
    slot: &'a ThreadSlot,
    contents: MutexGuard<'a, Contents>,
}

/// The calls of a thread, taken out of their slot. Dropping it returns them.
pub(super) struct TakenOut<'a> {
    slot: &'a ThreadSlot,
    calls: Option<Box<ThreadCalls>>,
}

impl ThreadSlot {
    /// Locks the calls; `None` while another thread submits them.
    pub(super) fn look(&self) -> Option<Locked<'_>> {
        let contents = unpoisoned(self.contents.lock());
        contents.calls.is_some().then_some(Locked { slot: self, contents })
    }

    /// Locks the calls, after waiting while another thread submits them.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] instead of waiting with [`Patience::None`]; [`Error::Timeout`] at the deadline; [`Error::Shutdown`] if the engine
    /// is closed meanwhile.
    pub(super) fn lock(&self, engine: &Engine, patience: Patience) -> Result<Locked<'_>, Error> {
        let mut contents = unpoisoned(self.contents.lock());
        while contents.calls.is_none() {
            let Patience::Until(deadline) = patience else {
                let pending = engine.pending();
                return Err(Error::WouldBlock { instructions: pending.instructions, bytes: pending.bytes });
            };
            if engine.closed.load(Ordering::SeqCst) {
                return Err(Error::Shutdown);
            }
            if let Some(over) = deadline.filter(Deadline::is_over) {
                return Err(over.error());
            }
            contents.waiting += 1;
            contents = match deadline {
                None => unpoisoned(self.returned.wait(contents)),
                Some(deadline) => {
                    let left = deadline.at().saturating_duration_since(std::time::Instant::now());
                    unpoisoned(self.returned.wait_timeout(contents, left)).0
                }
            };
            contents.waiting -= 1;
        }
        Ok(Locked { slot: self, contents })
    }

    /// Makes the threads that wait check whether the engine is closed.
    pub(super) fn notify(&self) {
        // Under the lock: a thread that has read that the engine is open waits by now.
        let _contents = unpoisoned(self.contents.lock());
        self.returned.notify_all();
    }
}

impl<'a> Locked<'a> {
    /// Takes the calls out, to submit them without the lock.
    pub(super) fn take_out(mut self) -> TakenOut<'a> {
        TakenOut { slot: self.slot, calls: self.contents.calls.take() }
    }
}

impl Drop for TakenOut<'_> {
    fn drop(&mut self) {
        let mut contents = unpoisoned(self.slot.contents.lock());
        contents.calls = self.calls.take();
        if contents.waiting > 0 {
            self.slot.returned.notify_all();
        }
    }
}

impl Deref for Locked<'_> {
    type Target = ThreadCalls;

    fn deref(&self) -> &ThreadCalls {
        self.contents.calls.as_ref().unwrap_or_else(|| unreachable!("it was made when the calls were there"))
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut ThreadCalls {
        self.contents.calls.as_mut().unwrap_or_else(|| unreachable!("it was made when the calls were there"))
    }
}

impl Deref for TakenOut<'_> {
    type Target = ThreadCalls;

    fn deref(&self) -> &ThreadCalls {
        self.calls.as_ref().unwrap_or_else(|| unreachable!("only `drop` returns the calls"))
    }
}

impl DerefMut for TakenOut<'_> {
    fn deref_mut(&mut self) -> &mut ThreadCalls {
        self.calls.as_mut().unwrap_or_else(|| unreachable!("only `drop` returns the calls"))
    }
}

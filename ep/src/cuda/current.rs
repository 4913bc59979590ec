//! The context that is current in a thread.
//!
//! The driver keeps one current context for each thread, and most calls go by it. A thread of the engine that launches
//! says so ([`bind`](Context::bind)), first of all and behind each code of a caller's that has run in it: the context stays
//! current there, and its calls pay a look at a number. Every other thread may be a caller's, with a context of its own
//! current: there each of our calls pushes ours and pops it again, so that the thread is left as it was found.
//!
//! The thread-local number owns nothing: it names the context that was bound, by a number that no other context of this
//! process gets, so that one that has ended is never taken for bound.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use super::driver::{ContextHandle, Driver, DriverFailure};

thread_local! {
    /// The number of the context bound to this thread; 0 for none.
    static BOUND: Cell<u64> = const { Cell::new(0) };
}

/// A retained context and its number.
#[derive(Copy, Clone, Debug)]
pub(super) struct Context {
    pub(super) handle: ContextHandle,
    number: u64,
}

impl Context {
    /// A context that has just been retained.
    pub(super) fn new(handle: ContextHandle) -> Context {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Context { handle, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Makes the context current until the guard is dropped; nothing where it is bound.
    ///
    /// # Safety
    /// * The context is retained for as long as the guard lives.
    #[inline]
    pub(super) unsafe fn enter(self, driver: Driver) -> Result<Entered, DriverFailure> {
        let pushed = BOUND.get() != self.number;
        if pushed {
            // SAFETY: the caller keeps it retained.
            unsafe { driver.push_current(self.handle) }?;
        }
        Ok(Entered { driver, pushed, of_this_thread: PhantomData })
    }

    /// Makes the context current in this thread for good: in place of what a caller's code may have left current, too. A
    /// thread where this fails pushes and pops like any other.
    ///
    /// # Safety
    /// * The thread gives no commands to this context once it is released.
    pub(super) unsafe fn bind(self, driver: Driver) -> Result<(), DriverFailure> {
        BOUND.set(0);
        // SAFETY: the caller's duty. A released context may stay current; a later call that goes by it is refused.
        unsafe { driver.set_current(self.handle) }?;
        BOUND.set(self.number);
        Ok(())
    }

    /// A caller's code has run here, and may have made another context current: a bound thread goes back to its own.
    ///
    /// # Safety
    /// * As [`bind`](Context::bind).
    pub(super) unsafe fn bind_again(self, driver: Driver) -> Result<(), DriverFailure> {
        if BOUND.get() == self.number {
            // SAFETY: the caller's duty.
            unsafe { self.bind(driver) }?;
        }
        Ok(())
    }
}

/// Does this thread launch for a device?
pub(super) fn is_bound() -> bool {
    BOUND.get() != 0
}

/// A context is current in this thread while this lives.
#[derive(Debug)]
pub(super) struct Entered {
    driver: Driver,
    pushed: bool,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            // It was pushed by this thread, so there is one to pop; what the driver says of it changes nothing.
            let _ = self.driver.pop_current();
        }
    }
}

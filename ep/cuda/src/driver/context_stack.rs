//! Which context is current in a thread, and the driver's stack of contexts.
//!
//! The driver has one current context per thread, and most calls use it.
//!
//! * A thread of the engine that launches calls [`bind`](Context::bind) first, and again after each run of the caller's code. The context
//!   stays current there, and a call only compares a number.
//! * In any other thread, which may have a context of the caller's current, each of our calls pushes our context and pops it again, so
//!   that the thread's state is restored.
//!
//! The thread-local number owns nothing. It names the bound context by a number that no other context of this process gets, so a context
//! that has ended is never mistaken for the bound one.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Driver, DriverFailure, RawContext};

thread_local! {
    /// The number of the context bound to this thread; 0 for none.
    static BOUND: Cell<u64> = const { Cell::new(0) };
}

/// A retained context and its number.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Context {
    pub(crate) handle: RawContext,
    number: u64,
}

impl Context {
    /// Wraps a context that has just been retained.
    pub(crate) fn new(handle: RawContext) -> Context {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Context { handle, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Makes the context current until the guard is dropped. Does nothing if the context is bound.
    ///
    /// # Safety
    /// * The context stays retained as long as the guard lives.
    #[inline]
    pub(crate) unsafe fn enter(self, driver: Driver) -> Result<CurrentContext, DriverFailure> {
        let pushed = BOUND.get() != self.number;
        if pushed {
            // SAFETY: the caller keeps the context retained while the guard lives.
            unsafe { driver.push_current(self.handle) }?;
        }
        Ok(CurrentContext { driver, pushed, not_send: PhantomData })
    }

    /// Makes the context current in this thread for good, also if the caller's code has left another one current. If this fails, the
    /// thread pushes and pops like any other.
    ///
    /// # Safety
    /// * The thread submits no commands to this context after it is released.
    pub(crate) unsafe fn bind(self, driver: Driver) -> Result<(), DriverFailure> {
        BOUND.set(0);
        // SAFETY: the caller guarantees it. If the context is released while it is still current, a later call that uses it is refused.
        unsafe { driver.set_current(self.handle) }?;
        BOUND.set(self.number);
        Ok(())
    }

    /// Makes the context of a bound thread current again, after the caller's code has run and may have changed it.
    ///
    /// # Safety
    /// * The duties of [`bind`](Context::bind).
    pub(crate) unsafe fn bind_again(self, driver: Driver) -> Result<(), DriverFailure> {
        if BOUND.get() == self.number {
            // SAFETY: the caller guarantees this.
            unsafe { self.bind(driver) }?;
        }
        Ok(())
    }
}

/// Whether this thread launches for a device.
pub(crate) fn is_bound() -> bool {
    BOUND.get() != 0
}

/// A guard: a context is current in this thread as long as the guard lives.
#[derive(Debug)]
pub(crate) struct CurrentContext {
    driver: Driver,
    pushed: bool,
    not_send: PhantomData<*const ()>,
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if self.pushed {
            // This thread has pushed it, so there is one to pop. The driver's result is ignored, because nothing could be done about a
            // failure.
            let _ = self.driver.pop_current();
        }
    }
}

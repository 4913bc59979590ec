//! Leases: how a list holds what it is shown without counting.
//!
//! Each thread has a lender, of which one lease at a time lasts: that of the list which the thread makes. What the list shows
//! has the lease's number; a lease ends with its list, by one store for all of it. A last reference that is dropped before is left
//! with the lender, and dropped by whoever ends the lease.

use std::ptr::{self, NonNull};

use crate::counted::{Any, Head};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// Who leases for the lists of one thread. It stays for the process; when its thread has ended, another takes it over.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Lender {
    /// The lease that lasts, or 0. Begun by the lender's thread, ended by any.
    pub(crate) current: AtomicUsize,
    /// The number of the last lease. The thread's own.
    issued: AtomicUsize,
    /// Last references that were dropped while a lease lasted.
    pub(crate) left: AtomicPtr<Head>,
}

impl Lender {
    fn new() -> Lender {
        let left = AtomicPtr::new(ptr::null_mut());
        Lender { current: AtomicUsize::new(0), issued: AtomicUsize::new(0), left }
    }

    /// A new one.
    pub(crate) fn leaked() -> &'static Lender {
        Box::leak(Box::new(Lender::new()))
    }

    /// Whether a lease lasts. One that is over stays so.
    #[inline]
    pub(crate) fn lasts(&self, serial: usize) -> bool {
        // Acquires what its end released: the list's last looks. Before the first lease of a lender is noted, there is no number.
        serial != 0 && self.current.load(Ordering::Acquire) == serial
    }

    /// Whether the calling thread leases from it.
    #[cold]
    pub(crate) fn is_of_thread(lender: *const Lender) -> bool {
        threads::lender().is_some_and(|mine| ptr::eq(mine, lender))
    }

    /// Keeps a last reference until the lease that was seen is over.
    #[inline(never)]
    pub(crate) fn leave(&self, reference: Any, serial: usize) {
        // SAFETY: it comes from a reference, which goes.
        unsafe { self.put(reference.into_raw()) };
        if !self.lasts(serial) {
            self.drop_left();
        }
    }

    /// Puts a reference to what was left.
    ///
    /// # Safety
    /// `head` comes from [`Any::into_raw`], and is put here alone.
    pub(crate) unsafe fn put(&self, head: NonNull<Head>) {
        let mut first = self.left.load(Ordering::Relaxed);
        loop {
            // SAFETY: it is a counted reference until it is taken out again.
            unsafe { head.as_ref() }.next.store(first, Ordering::Relaxed);
            // Who ends the lease changes the same place behind that: either this is found there, or the end is seen.
            match self.left.compare_exchange(first, head.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Drops what was left. What a list shows by now is left again.
    #[inline]
    pub(crate) fn drop_left(&self) {
        let first = self.left.swap(ptr::null_mut(), Ordering::AcqRel);
        if !first.is_null() {
            Lender::drop_all(Left(first));
        }
    }

    #[inline(never)]
    fn drop_all(left: Left) {
        left.for_each(drop);
    }
}

/// References that were left and taken out.
struct Left(*mut Head);

impl Iterator for Left {
    type Item = Any;

    fn next(&mut self) -> Option<Any> {
        let head = NonNull::new(self.0)?;
        // SAFETY: it was put there with its reference, which nobody else has taken out.
        self.0 = unsafe { head.as_ref() }.next.load(Ordering::Relaxed);
        // SAFETY: it came from `put`, and was taken out by this thread alone.
        Some(unsafe { Any::from_raw(head) })
    }
}

impl Drop for Left {
    /// What is behind one whose end panics ends too.
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// The right to show what is counted without counting, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) lender: &'static Lender,
    pub(crate) serial: usize,
}

impl Lease {
    /// A lease of this lender's; `None` while another lasts. By one thread at a time.
    pub(crate) fn begin(lender: &'static Lender) -> Option<Lease> {
        // Acquires the end of the last one, which another thread may have made, and hands it on below: who sees this one sees that.
        if lender.current.load(Ordering::Acquire) != 0 {
            return None;
        }
        // Should the numbers come round, what was shown by a former lease of the same number ends with this one, later than it must.
        let serial = lender.issued.load(Ordering::Relaxed).wrapping_add(1).max(1);
        lender.issued.store(serial, Ordering::Relaxed);
        lender.current.store(serial, Ordering::Release);
        Some(Lease { lender, serial })
    }

    /// A lease of the calling thread's lender. None while another lasts, nor where the thread is ending.
    pub(crate) fn of_thread() -> Option<Lease> {
        threads::lender().and_then(Lease::begin)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.lender.current.store(0, Ordering::Release);
        // See `Lender::leave`.
        self.lender.drop_left();
    }
}

mod threads {
    use std::sync::{Mutex, MutexGuard, TryLockError};
    use std::thread;

    use super::{Lender, Ordering};

    /// Lenders of threads that have ended.
    static FREE: Mutex<Vec<&'static Lender>> = Mutex::new(Vec::new());

    /// How often a thread looks whether it gets those. In a forked child who has them may be gone, so nobody waits.
    const LOOKS: usize = 64;

    fn free() -> Option<MutexGuard<'static, Vec<&'static Lender>>> {
        (0..LOOKS).find_map(|_| match FREE.try_lock() {
            Ok(free) => Some(free),
            Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
            Err(TryLockError::WouldBlock) => {
                thread::yield_now();
                None
            }
        })
    }

    /// One without a lease: a thread that got one whose lease lasts, with a list that is kept, would have none meanwhile.
    fn free_one() -> Option<&'static Lender> {
        let mut free = free()?;
        let idle = free.iter().rposition(|lender| lender.current.load(Ordering::Relaxed) == 0)?;
        Some(free.swap_remove(idle))
    }

    struct Mine(&'static Lender);

    impl Drop for Mine {
        fn drop(&mut self) {
            if let Some(mut free) = free() {
                free.push(self.0);
            }
        }
    }

    thread_local! {
        static MINE: Mine = Mine(free_one().unwrap_or_else(Lender::leaked));
    }

    /// The calling thread's lender.
    pub(super) fn lender() -> Option<&'static Lender> {
        MINE.try_with(|mine| mine.0).ok()
    }
}

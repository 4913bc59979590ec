//! Leases: the epochs during which a hoard holds values without counting them.
//!
//! Each thread has one [`Lender`], which has at most one lease at a time: that of the hoard which the thread fills. The hoard stores the
//! number of its lease in every value that it holds. When the hoard ends, one store ends the lease for all these values. A last counted
//! reference that is dropped earlier is put on the lender's list of deferred drops, and the thread that ends the lease drops that list.
//!
//! This is a simple form of epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004): the lender is the participant, the lease
//! its pinned epoch.

use std::ptr::{self, NonNull};

use crate::refcount::counted::{Any, Head};
use crate::refcount::sync::{AtomicPtr, AtomicUsize, Ordering};

/// The participant of one thread: it issues the leases. It is never freed; after its thread has ended, a new thread takes it over.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Lender {
    /// The number of the lease that lasts, or 0. The lender's thread begins a lease; any thread may end it.
    pub(crate) current: AtomicUsize,
    /// The number of the last lease. Only the lender's thread uses it.
    issued: AtomicUsize,
    /// The deferred drops: last references that were dropped while a lease lasted.
    pub(crate) left: AtomicPtr<Head>,
}

impl Lender {
    fn new() -> Lender {
        let left = AtomicPtr::new(ptr::null_mut());
        Lender { current: AtomicUsize::new(0), issued: AtomicUsize::new(0), left }
    }

    /// Makes a lender that lives until the process ends.
    pub(crate) fn leaked() -> &'static Lender {
        Box::leak(Box::new(Lender::new()))
    }

    /// Whether the lease with this number lasts. Once a lease is over, this stays false.
    #[inline]
    pub(crate) fn lasts(&self, serial: usize) -> bool {
        // Acquire: pairs with the end of the lease, so that the hoard's last reads come before. The number is 0 in a value that was never
        // pinned.
        serial != 0 && self.current.load(Ordering::Acquire) == serial
    }

    /// Whether `lender` is that of the calling thread.
    #[cold]
    pub(crate) fn is_of_thread(lender: *const Lender) -> bool {
        threads::lender().is_some_and(|mine| ptr::eq(mine, lender))
    }

    /// Defers the drop of a last reference until the lease that the caller has seen, number `serial`, is over.
    #[inline(never)]
    pub(crate) fn leave(&self, reference: Any, serial: usize) {
        // SAFETY: the pointer comes from `into_raw` of a reference that is consumed here, and is put on no other list.
        unsafe { self.put(reference.into_raw()) };
        if !self.lasts(serial) {
            self.drop_left();
        }
    }

    /// Puts a reference on the list of deferred drops.
    ///
    /// # Safety
    /// * `head` comes from [`Any::into_raw`].
    /// * It is put on one list, once.
    pub(crate) unsafe fn put(&self, head: NonNull<Head>) {
        let mut first = self.left.load(Ordering::Relaxed);
        loop {
            // SAFETY: the list owns the counted reference until `drop_left` takes it out, so the head is alive.
            unsafe { head.as_ref() }.next.store(first, Ordering::Relaxed);
            // Ending a lease stores 0 and then swaps this list. So either that swap finds this reference, or the check after `put` sees
            // the end.
            match self.left.compare_exchange(first, head.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Drops the deferred references. A value that a newer lease pins is deferred again.
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

/// A list of deferred references that was taken out of the lender.
struct Left(*mut Head);

impl Iterator for Left {
    type Item = Any;

    fn next(&mut self) -> Option<Any> {
        let head = NonNull::new(self.0)?;
        // SAFETY: the list owns a counted reference to the head, and this thread alone has taken the list.
        self.0 = unsafe { head.as_ref() }.next.load(Ordering::Relaxed);
        // SAFETY: the pointer came from `into_raw` by way of `put`, and leaves the list only here.
        Some(unsafe { Any::from_raw(head) })
    }
}

impl Drop for Left {
    /// If dropping a value panics, the rest of the list is dropped all the same.
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// The right to hold values without counting them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) lender: &'static Lender,
    pub(crate) serial: usize,
}

impl Lease {
    /// Begins a lease of `lender`; `None` while another one lasts. Only one thread at a time may call this for a lender.
    pub(crate) fn begin(lender: &'static Lender) -> Option<Lease> {
        // Acquire: the last lease may have been ended by another thread. The release store below passes that on: a thread that sees the
        // new lease also sees that the old one is over.
        if lender.current.load(Ordering::Acquire) != 0 {
            return None;
        }
        // The number may wrap around. A value that an old lease with the same number pinned is then dropped later than needed, which is
        // safe.
        let serial = lender.issued.load(Ordering::Relaxed).wrapping_add(1).max(1);
        lender.issued.store(serial, Ordering::Relaxed);
        lender.current.store(serial, Ordering::Release);
        Some(Lease { lender, serial })
    }

    /// Begins a lease of the calling thread's lender. `None` while another one lasts, and when the thread is ending.
    pub(crate) fn of_thread() -> Option<Lease> {
        threads::lender().and_then(Lease::begin)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.lender.current.store(0, Ordering::Release);
        // Takes what was deferred meanwhile: see the ordering in `Lender::put`.
        self.lender.drop_left();
    }
}

mod threads {
    use std::sync::{Mutex, MutexGuard, TryLockError};
    use std::thread;

    use super::{Lender, Ordering};

    /// Lenders of threads that have ended.
    static FREE: Mutex<Vec<&'static Lender>> = Mutex::new(Vec::new());

    /// How often to try the lock of [`FREE`]. Nothing blocks on it: in a forked child, the thread that held the lock may not exist.
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

    /// A free lender without a lease. A lender whose lease still lasts, for a hoard that is kept, could give its new thread no lease.
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

    /// The calling thread's lender; `None` while the thread's local storage is being destroyed.
    pub(super) fn lender() -> Option<&'static Lender> {
        MINE.try_with(|mine| mine.0).ok()
    }
}

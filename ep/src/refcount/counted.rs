//! Counted references that a [`Hoard`](crate::Hoard) can hold without touching the count: deferred reference counting.
//!
//! An atomic increment and decrement per reference are too expensive for a list of instructions. A hoard therefore *pins* a value by a
//! [`Lease`]: a plain store writes the number of the lease beside the count. The thread that drops the last counted reference reads that
//! number:
//!
//! * While the lease lasts, the thread defers the drop: it hands the reference to the lease's [`Lender`], the participant of one thread.
//!   The reference is dropped after the lease has ended.
//! * Otherwise the value ends at once.
//!
//! Invariant: a value outlives every hoard that holds a reference to it.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::refcount::lease::{Lease, Lender};
use crate::refcount::sync::{AtomicPtr, AtomicUsize, Ordering};

/// A type whose values can be counted.
pub trait Last: Sized + Send + Sync + 'static {
    /// Called with the value and its allocation when the last reference is gone and no lease on it lasts.
    fn last(own: Own<Self>);
}

/// The unique reference to a value on the heap: nothing else refers to the value and no lease on it lasts, so it can be changed.
///
/// A counted value is written in place here before it is shared, and [`Last::last`] gives it back as an `Own`, so that the allocation can
/// be used again. It is invariant in `T`, because the function that drops the value was chosen for exactly this type:
///
/// ```compile_fail
/// # use streamvm_ep::Own;
/// fn narrowed<'a>(own: Own<fn(&'a str)>) -> Own<fn(&'static str)> {
///     own
/// }
/// ```
pub struct Own<T>(NonNull<Place<T>>, PhantomData<fn(T) -> T>);

/// A counted reference. `Clone` increments the count, a drop decrements it. Invariant in `T`, like [`Own`].
#[repr(transparent)]
pub struct Counted<T: Last>(NonNull<Place<T>>, PhantomData<fn(T) -> T>);

/// The allocation of a counted value: the head with the count, then the value.
#[repr(C)]
struct Place<T> {
    head: Head,
    value: T,
}

/// The count of a value, and the last lease on it.
pub(crate) struct Head {
    /// The number of counted references.
    count: AtomicUsize,
    /// The number of the last lease on the value, as its lender counts. That lease may be over.
    serial: AtomicUsize,
    /// The lender of the leases; null before the first lease. It does not change while there are counted references.
    lender: AtomicPtr<Lender>,
    /// The link to the next deferred drop of the same lender, while the last reference is among them.
    pub(crate) next: AtomicPtr<Head>,
    /// Drops one counted reference, as a reference to the right type.
    drop: unsafe fn(NonNull<Head>),
}

// SAFETY: a reference shares the value between threads, and the thread that drops the last one ends it; `Last` requires `Sync` and
// `Send`.
unsafe impl<T: Last> Send for Counted<T> {}
// SAFETY: as for `Send`: a shared `Counted` can be cloned and the clone sent.
unsafe impl<T: Last> Sync for Counted<T> {}
// SAFETY: an `Own` owns its value, and `T` may be sent.
unsafe impl<T: Send> Send for Own<T> {}
// SAFETY: a shared `Own` only gives `&T`, and `T` may be shared.
unsafe impl<T: Sync> Sync for Own<T> {}

impl Head {
    /// Stores the number of a lease if the value's leases are already those of its lender. Otherwise returns false and changes nothing.
    #[inline]
    fn lease_again(&self, lease: &Lease) -> bool {
        let same = ptr::eq(self.lender.load(Ordering::Relaxed), lease.lender);
        if same {
            // Release: a thread that reads this number also sees that the lease has begun, and so can tell whether it is over.
            self.serial.store(lease.serial, Ordering::Release);
        }
        same
    }

    /// Stores the number of a lease. Returns false and changes nothing if the value's leases are those of another lender.
    fn lease(&self, lease: &Lease) -> bool {
        let (nobody, lender) = (ptr::null_mut(), ptr::from_ref(lease.lender).cast_mut());
        // If two lenders come first at the same time, the exchange picks one of them.
        let _ = self.lender.compare_exchange(nobody, lender, Ordering::Release, Ordering::Relaxed);
        self.lease_again(lease)
    }

    /// Resets the lender unless it is that of the calling thread. The caller has the only reference, and no lease on the value lasts.
    #[inline]
    fn forget_others(&self) {
        let lender = self.lender.load(Ordering::Relaxed);
        if !lender.is_null() && !Lender::is_of_thread(lender) {
            self.lender.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// The lender, and the number of its last lease on the value.
    #[inline]
    fn leased(&self) -> (*mut Lender, usize) {
        (self.lender.load(Ordering::Acquire), self.serial.load(Ordering::Acquire))
    }
}

/// The outcome of dropping a counted reference.
enum Fate {
    /// Other counted references are left.
    Counted,
    /// It was the last counted reference, and a hoard may still hold the value: the drop must be deferred to this lender, with the number
    /// of the lease that was read.
    Lent(&'static Lender, usize),
    /// It was the last reference, and no other thread can reach the value.
    Last,
}

impl Head {
    /// Drops one counted reference.
    ///
    /// # Safety
    /// * `head` is the head of a counted reference.
    /// * The caller uses that reference afterwards only as the returned [`Fate`] says.
    #[inline]
    unsafe fn drop_one(head: NonNull<Head>) -> Fate {
        // A `&self` would have to be valid for the whole call, but other threads may free the allocation once this reference is no longer
        // counted.
        // SAFETY: the allocation is alive while the reference is counted.
        let this = unsafe { head.as_ref() };
        loop {
            let count = this.count.load(Ordering::Relaxed);
            if count > 1 {
                // Never decrement to zero: of two threads that drop at the same time, one must see that its reference is the last.
                if this.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
                    return Fate::Counted;
                }
                continue;
            }
            // A lease that is over never lasts again, so from here on only a newer lease can pin the value. Its number is stored before
            // the counted reference that was pinned is dropped, so before the count can be one again.
            let leased = this.leased();
            // SAFETY: lenders are leaked and live until the process ends.
            let lender = unsafe { leased.0.as_ref() };
            let lasts = lender.filter(|lender| lender.lasts(leased.1));
            if this.count.load(Ordering::Acquire) > 1 {
                // A hoard that held the value made a counted reference meanwhile.
                continue;
            }
            match lasts {
                Some(lender) => return Fate::Lent(lender, leased.1),
                None if this.leased() == leased => return Fate::Last,
                None => {}
            }
        }
    }
}

impl<T> Own<T> {
    /// Allocates memory for a value.
    pub fn new(value: T) -> Own<T>
    where
        T: Last,
    {
        let head = Head {
            count: AtomicUsize::new(1),
            serial: AtomicUsize::new(0),
            lender: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(ptr::null_mut()),
            drop: drop_counted::<T>,
        };
        Own(NonNull::from(Box::leak(Box::new(Place { head, value }))), PhantomData)
    }

    /// Turns the unique reference into the first counted one.
    #[inline]
    pub fn share(self) -> Counted<T>
    where
        T: Last,
    {
        let place = self.0;
        mem::forget(self);
        // SAFETY: `self` owned the allocation, and was forgotten, so it is alive and unshared.
        unsafe { place.as_ref() }.head.forget_others();
        // The count is already one: it is set so at the start and never reaches zero.
        Counted(place, PhantomData)
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `self` owns the allocation until it is dropped or shared.
        let place = unsafe { self.0.as_ref() };
        &place.value
    }
}

impl<T> DerefMut for Own<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `self` owns the allocation and is borrowed mutably, so there is no other reference to it.
        let place = unsafe { self.0.as_mut() };
        &mut place.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: the allocation came from `Box::leak` in `new`, and `self`, its only owner, is not used again.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: Last> Counted<T> {
    /// Allocates a value and returns the first reference to it.
    pub fn new(value: T) -> Counted<T> {
        Own::new(value).share()
    }

    #[inline]
    fn place(&self) -> &Place<T> {
        // SAFETY: the allocation is alive while a reference is counted or a lease that pins the value lasts, and each `Counted` is one of
        // the two.
        unsafe { self.0.as_ref() }
    }

    /// Pins the value by `lease`: an [uncounted](Self::uncounted) reference stays valid as long as the lease lasts. Returns false if the
    /// value's leases are those of another lender; the caller must then hold a counted reference.
    pub(crate) fn lend(&self, lease: &Lease) -> bool {
        self.place().head.lease(lease)
    }

    /// As [`lend`](Self::lend), but cheaper: returns false also for a value that was never pinned.
    #[inline]
    pub(crate) fn lend_again(&self, lease: &Lease) -> bool {
        self.place().head.lease_again(lease)
    }

    /// The same reference once more, without counting it.
    ///
    /// # Safety
    /// * At most one of the two references is dropped.
    /// * The other one is used only while the first is counted, or while a lease lasts by which the value was [pinned](Counted::lend).
    #[inline]
    pub(crate) unsafe fn uncounted(&self) -> Counted<T> {
        Counted(self.0, PhantomData)
    }

    /// Erases the type.
    pub(crate) fn of_any_type(self) -> Any {
        let place = self.0;
        mem::forget(self);
        Any(place.cast())
    }
}

/// The most references that are allowed. A larger count could wrap around, and is reached only by forgetting references.
const MOST: usize = isize::MAX as usize;

impl<T: Last> Counted<T> {
    #[cold]
    fn too_many(&self) -> ! {
        self.place().head.count.fetch_sub(1, Ordering::Relaxed);
        panic!("there are more than {MOST} references to one value: some were forgotten instead of dropped")
    }
}

impl<T: Last> Clone for Counted<T> {
    #[inline]
    fn clone(&self) -> Counted<T> {
        // Relaxed: a new reference orders nothing, because `self` keeps the value alive meanwhile.
        if self.place().head.count.fetch_add(1, Ordering::Relaxed) > MOST {
            self.too_many();
        }
        // SAFETY: the increment above counts the new reference, so both may be dropped, in any order.
        unsafe { self.uncounted() }
    }
}

impl<T: Last> Deref for Counted<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.place().value
    }
}

impl<T: Last> Drop for Counted<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self` is a counted reference, because a hoard never drops its uncounted ones. Below, it is only handed to the lender,
        // or turned into the unique reference.
        match unsafe { Head::drop_one(self.0.cast()) } {
            Fate::Counted => {}
            Fate::Lent(lender, serial) => lender.leave(Any(self.0.cast()), serial),
            Fate::Last => T::last(Own(self.0, PhantomData)),
        }
    }
}

impl<T: Last + fmt::Debug> fmt::Debug for Counted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Own<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A counted reference whose type is erased.
pub(crate) struct Any(NonNull<Head>);

// SAFETY: it is made only from a `Counted<T>` with `T: Last`, which may be sent and shared between threads.
unsafe impl Send for Any {}
// SAFETY: as for `Send`.
unsafe impl Sync for Any {}

impl Any {
    pub(crate) fn into_raw(self) -> NonNull<Head> {
        let head = self.0;
        mem::forget(self);
        head
    }

    /// # Safety
    /// * `head` came from [`Any::into_raw`].
    /// * Each such pointer is turned back at most once.
    pub(crate) unsafe fn from_raw(head: NonNull<Head>) -> Any {
        Any(head)
    }
}

impl Drop for Any {
    fn drop(&mut self) {
        // SAFETY: this is a counted reference, so the allocation is alive.
        let drop = unsafe { self.0.as_ref() }.drop;
        // SAFETY: the function was stored for the type of this value, and the reference, which it consumes, is not used again.
        unsafe { drop(self.0) };
    }
}

/// Drops a counted reference to a `T`.
///
/// # Safety
/// * `head` is the head of a `T` that is counted.
/// * It stands for one counted reference, which this call consumes.
unsafe fn drop_counted<T: Last>(head: NonNull<Head>) {
    // The head is the first field of the `repr(C)` allocation, and the pointer was made from one to the whole allocation.
    drop(Counted::<T>(head.cast(), PhantomData));
}

#[cfg(all(test, loom))]
#[path = "counted_tests.rs"]
mod loom_tests;

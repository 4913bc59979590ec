//! Counted references that a list can pin instead of counting; the module [`refcount`](crate::refcount) explains the algorithm.
//!
//! The allocation of a value has the count of its references, and beside it the participant and epoch by which a list pinned the value
//! last. Pinning is a plain store. The thread that drops the last counted reference reads both:
//!
//! * While the epoch is current, the thread defers the drop: it hands the reference to the [`Participant`], which drops it after the
//!   epoch has ended.
//! * Otherwise the value is recycled at once.
//!
//! Invariant: a value outlives every [`PinnedRefs`](crate::PinnedRefs) that refers to it.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::refcount::epoch_guard::{EpochGuard, Participant};
use crate::refcount::sync::{AtomicPtr, AtomicUsize, Ordering};

/// A type whose values can be counted, and what becomes of a value and its allocation at the end.
pub trait Recycle: Sized + Send + Sync + 'static {
    /// Called with the value and its allocation when the last counted reference is gone and the value is not pinned.
    fn recycle(unique: Unique<Self>);
}

/// The unique reference to a value on the heap: nothing else refers to the value and it is not pinned, so it can be changed.
///
/// A counted value is written in place here before it is shared, and [`Recycle::recycle`] gets it back as a `Unique`, so that the
/// allocation can be used again. It is invariant in `T`, because the function that drops the value was chosen for exactly this type:
///
/// ```compile_fail
/// # use streamvm_ep::Unique;
/// fn narrowed<'a>(unique: Unique<fn(&'a str)>) -> Unique<fn(&'static str)> {
///     unique
/// }
/// ```
pub struct Unique<T>(NonNull<Allocation<T>>, PhantomData<fn(T) -> T>);

/// A counted reference. `Clone` increments the count, a drop decrements it. Invariant in `T`, like [`Unique`].
#[repr(transparent)]
pub struct Counted<T: Recycle>(NonNull<Allocation<T>>, PhantomData<fn(T) -> T>);

/// The allocation of a counted value: the header with the count, then the value.
#[repr(C)]
struct Allocation<T> {
    header: Header,
    value: T,
}

/// The count of a value, and the participant and epoch that pinned it last.
pub(crate) struct Header {
    /// The number of counted references.
    count: AtomicUsize,
    /// The epoch of the participant in which the value was pinned last; 0 if it never was. That epoch may have ended.
    epoch: AtomicUsize,
    /// The participant that pins the value; null before the value is first pinned. It does not change while there are counted references.
    participant: AtomicPtr<Participant>,
    /// The link to the next deferred drop of the same participant, while the last reference is among them.
    pub(crate) next: AtomicPtr<Header>,
    /// Drops one counted reference, as a reference to the right type.
    drop: unsafe fn(NonNull<Header>),
}

// SAFETY: a reference shares the value between threads, and the thread that drops the last one ends it; `Recycle` requires `Sync` and
// `Send`.
unsafe impl<T: Recycle> Send for Counted<T> {}
// SAFETY: as for `Send`: a shared `Counted` can be cloned and the clone sent.
unsafe impl<T: Recycle> Sync for Counted<T> {}
// SAFETY: a `Unique` owns its value, and `T` may be sent.
unsafe impl<T: Send> Send for Unique<T> {}
// SAFETY: a shared `Unique` only gives `&T`, and `T` may be shared.
unsafe impl<T: Sync> Sync for Unique<T> {}

impl Header {
    /// Pins the value by `guard` if the participant of the guard pinned it before. Otherwise returns false and changes nothing.
    #[inline]
    fn pin_again(&self, guard: &EpochGuard) -> bool {
        let same = ptr::eq(self.participant.load(Ordering::Relaxed), guard.participant);
        if same {
            // Release: a thread that reads this number also sees that the epoch has begun, and so can tell whether it has ended.
            self.epoch.store(guard.epoch, Ordering::Release);
        }
        same
    }

    /// Pins the value by `guard`. Returns false and changes nothing if another participant pinned the value before.
    fn pin(&self, guard: &EpochGuard) -> bool {
        let (none, participant) = (ptr::null_mut(), ptr::from_ref(guard.participant).cast_mut());
        // If two participants are the first to pin the value at the same time, the exchange picks one of them.
        let _ = self.participant.compare_exchange(none, participant, Ordering::Release, Ordering::Relaxed);
        self.pin_again(guard)
    }

    /// Resets the participant unless it is that of the calling thread. The caller has the only reference, and the value is not pinned.
    #[inline]
    fn reset_foreign_participant(&self) {
        let participant = self.participant.load(Ordering::Relaxed);
        if !participant.is_null() && !Participant::is_of_this_thread(participant) {
            self.participant.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// The participant, and the epoch in which it pinned the value last.
    #[inline]
    fn pinned_by(&self) -> (*mut Participant, usize) {
        (self.participant.load(Ordering::Acquire), self.epoch.load(Ordering::Acquire))
    }
}

/// The outcome of dropping a counted reference.
enum Dropped {
    /// There are other counted references.
    Shared,
    /// It was the last counted reference, and a list may still use the value: the drop must be deferred to this participant until this
    /// epoch has ended.
    Pinned(&'static Participant, usize),
    /// It was the last reference, and no other thread can reach the value.
    Last,
}

impl Header {
    /// Drops one counted reference.
    ///
    /// # Safety
    /// * `header` is the header of a counted reference.
    /// * The caller uses that reference afterwards only as the returned [`Dropped`] says.
    #[inline]
    unsafe fn release(header: NonNull<Header>) -> Dropped {
        // A `&self` would have to be valid for the whole call, but other threads may free the allocation once this reference is no longer
        // counted.
        // SAFETY: the allocation is alive while the reference is counted.
        let this = unsafe { header.as_ref() };
        loop {
            let count = this.count.load(Ordering::Relaxed);
            if count > 1 {
                // Never decrement to zero: of two threads that drop at the same time, one must see that its reference is the last.
                if this.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
                    return Dropped::Shared;
                }
                continue;
            }
            // An epoch that has ended stays so, so from here on only a newer epoch can pin the value. Its number is stored before the
            // counted reference through which the value was pinned is dropped, so before the count can be one again.
            let pinned_by = this.pinned_by();
            // SAFETY: participants are leaked and live until the process ends.
            let participant = unsafe { pinned_by.0.as_ref() };
            let current = participant.filter(|participant| participant.is_current(pinned_by.1));
            if this.count.load(Ordering::Acquire) > 1 {
                // A counted reference was cloned from a list meanwhile.
                continue;
            }
            match current {
                Some(participant) => return Dropped::Pinned(participant, pinned_by.1),
                None if this.pinned_by() == pinned_by => return Dropped::Last,
                None => {}
            }
        }
    }
}

impl<T> Unique<T> {
    /// Allocates memory for a value.
    pub fn new(value: T) -> Unique<T>
    where
        T: Recycle,
    {
        let header = Header {
            count: AtomicUsize::new(1),
            epoch: AtomicUsize::new(0),
            participant: AtomicPtr::new(ptr::null_mut()),
            next: AtomicPtr::new(ptr::null_mut()),
            drop: drop_counted::<T>,
        };
        Unique(NonNull::from(Box::leak(Box::new(Allocation { header, value }))), PhantomData)
    }

    /// Turns the unique reference into the first counted one.
    #[inline]
    pub fn share(self) -> Counted<T>
    where
        T: Recycle,
    {
        let allocation = self.0;
        mem::forget(self);
        // SAFETY: `self` owned the allocation, and was forgotten, so it is alive and unshared.
        unsafe { allocation.as_ref() }.header.reset_foreign_participant();
        // The count is already one: it is set so at the start and never reaches zero.
        Counted(allocation, PhantomData)
    }
}

impl<T> Deref for Unique<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `self` owns the allocation until it is dropped or shared.
        let allocation = unsafe { self.0.as_ref() };
        &allocation.value
    }
}

impl<T> DerefMut for Unique<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `self` owns the allocation and is borrowed mutably, so there is no other reference to it.
        let allocation = unsafe { self.0.as_mut() };
        &mut allocation.value
    }
}

impl<T> Drop for Unique<T> {
    fn drop(&mut self) {
        // SAFETY: the allocation came from `Box::leak` in `new`, and `self`, its only owner, is not used again.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: Recycle> Counted<T> {
    /// Allocates a value and returns the first reference to it.
    pub fn new(value: T) -> Counted<T> {
        Unique::new(value).share()
    }

    #[inline]
    fn allocation(&self) -> &Allocation<T> {
        // SAFETY: the allocation is alive while a reference is counted or the epoch in which the value was pinned is current, and each
        // `Counted` is covered by one of the two.
        unsafe { self.0.as_ref() }
    }

    /// Pins the value by `guard`: an [uncounted](Self::uncounted) reference stays valid as long as the guard lives. Returns false if another
    /// participant pinned the value before; the caller must then hold a counted reference.
    pub(crate) fn pin(&self, guard: &EpochGuard) -> bool {
        self.allocation().header.pin(guard)
    }

    /// As [`pin`](Self::pin), but cheaper: returns false also for a value that was never pinned.
    #[inline]
    pub(crate) fn pin_again(&self, guard: &EpochGuard) -> bool {
        self.allocation().header.pin_again(guard)
    }

    /// The same reference once more, without counting it.
    ///
    /// # Safety
    /// * At most one of the two references is dropped.
    /// * The other one is used only while the first is counted, or while a guard lives by which the value was [pinned](Counted::pin).
    #[inline]
    pub(crate) unsafe fn uncounted(&self) -> Counted<T> {
        Counted(self.0, PhantomData)
    }

    /// Erases the type.
    pub(crate) fn erase(self) -> Erased {
        let allocation = self.0;
        mem::forget(self);
        Erased(allocation.cast())
    }
}

/// The most references that are allowed. A larger count could wrap around, and is reached only by forgetting references.
const MAX_REFERENCES: usize = isize::MAX as usize;

impl<T: Recycle> Counted<T> {
    #[cold]
    fn too_many(&self) -> ! {
        self.allocation().header.count.fetch_sub(1, Ordering::Relaxed);
        panic!("there are more than {MAX_REFERENCES} references to one value: some were forgotten instead of dropped")
    }
}

impl<T: Recycle> Clone for Counted<T> {
    #[inline]
    fn clone(&self) -> Counted<T> {
        // Relaxed: a new reference orders nothing, because `self` keeps the value alive meanwhile.
        if self.allocation().header.count.fetch_add(1, Ordering::Relaxed) > MAX_REFERENCES {
            self.too_many();
        }
        // SAFETY: the increment above counts the new reference, so both may be dropped, in any order.
        unsafe { self.uncounted() }
    }
}

impl<T: Recycle> Deref for Counted<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.allocation().value
    }
}

impl<T: Recycle> Drop for Counted<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self` is a counted reference, because a list never drops its uncounted ones. Below, it is only handed to the
        // participant, or turned into the unique reference.
        match unsafe { Header::release(self.0.cast()) } {
            Dropped::Shared => {}
            Dropped::Pinned(participant, epoch) => participant.defer(Erased(self.0.cast()), epoch),
            Dropped::Last => T::recycle(Unique(self.0, PhantomData)),
        }
    }
}

impl<T: Recycle + fmt::Debug> fmt::Debug for Counted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Unique<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A counted reference whose type is erased.
pub(crate) struct Erased(NonNull<Header>);

// SAFETY: it is made only from a `Counted<T>` with `T: Recycle`, which may be sent and shared between threads.
unsafe impl Send for Erased {}
// SAFETY: as for `Send`.
unsafe impl Sync for Erased {}

impl Erased {
    pub(crate) fn into_raw(self) -> NonNull<Header> {
        let header = self.0;
        mem::forget(self);
        header
    }

    /// # Safety
    /// * `header` came from [`Erased::into_raw`].
    /// * Each such pointer is turned back at most once.
    pub(crate) unsafe fn from_raw(header: NonNull<Header>) -> Erased {
        Erased(header)
    }
}

impl Drop for Erased {
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
/// * `header` is the header of a `T` that is counted.
/// * It stands for one counted reference, which this call consumes.
unsafe fn drop_counted<T: Recycle>(header: NonNull<Header>) {
    // The header is the first field of the `repr(C)` allocation, and the pointer was made from one to the whole allocation.
    drop(Counted::<T>(header.cast(), PhantomData));
}

#[cfg(all(test, loom))]
#[path = "counted_tests.rs"]
mod loom_tests;

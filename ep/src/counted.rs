//! Counted references, which a [`Hoard`](crate::Hoard) may hold without counting.
//!
//! Counting up and down are locked instructions, and those of a list were a third of what its instructions cost a program. So a
//! list *leases* what it is shown ([`Lease`]): it notes the lease where the count is, by a plain store, and whoever drops the last
//! counted reference looks there. While the lease lasts, that reference goes to its lender, and is dropped behind the lease's end. So
//! nothing ends before the last list that was shown it.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::lease::{Lease, Lender};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// What can be counted.
pub trait Last: Sized + Send + Sync + 'static {
    /// Takes it when the last reference is gone, with the memory that it lies in.
    fn last(own: Own<Self>);
}

/// A value in memory, of which there is one reference and no lease: it can be changed.
///
/// What is counted is filled in here, where it stays, and may come back here to be used again. It is of the type that it was made
/// with, as what drops it was chosen by that:
///
/// ```compile_fail
/// # use streamvm_ep::Own;
/// fn narrowed<'a>(own: Own<fn(&'a str)>) -> Own<fn(&'static str)> {
///     own
/// }
/// ```
pub struct Own<T>(NonNull<Place<T>>, PhantomData<fn(T) -> T>);

/// A counted reference. `Clone` counts up, a drop counts down. Of the type that it was made with, as [`Own`].
#[repr(transparent)]
pub struct Counted<T: Last>(NonNull<Place<T>>, PhantomData<fn(T) -> T>);

/// What is counted, behind its count.
#[repr(C)]
struct Place<T> {
    head: Head,
    value: T,
}

/// The count, and who has leased.
pub(crate) struct Head {
    /// The counted references.
    count: AtomicUsize,
    /// The last lease, by its number with its lender. It may be over.
    serial: AtomicUsize,
    /// Whose leases; null before the first. It stays the same as long as there are references.
    lender: AtomicPtr<Lender>,
    /// What else the lender was left, where the last reference is among it.
    pub(crate) next: AtomicPtr<Head>,
    /// Drops a reference of the right type.
    drop: unsafe fn(NonNull<Head>),
}

// SAFETY: values are shared by reference, and dropped by whichever thread has the last; `Last` asks for both.
unsafe impl<T: Last> Send for Counted<T> {}
// SAFETY: as above.
unsafe impl<T: Last> Sync for Counted<T> {}
// SAFETY: it owns a value that may be sent.
unsafe impl<T: Send> Send for Own<T> {}
// SAFETY: it owns a value that may be shared.
unsafe impl<T: Sync> Sync for Own<T> {}

impl Head {
    /// Notes a lease of who leased last; false, and nothing, where this is another lender's, or the first.
    #[inline]
    fn lease_again(&self, lease: &Lease) -> bool {
        let same = ptr::eq(self.lender.load(Ordering::Relaxed), lease.lender);
        if same {
            // Releases that the lease has begun: who sees its number sees whether it is over.
            self.serial.store(lease.serial, Ordering::Release);
        }
        same
    }

    /// Notes a lease; false, and nothing, where the leases of another lender are noted.
    fn lease(&self, lease: &Lease) -> bool {
        let (nobody, lender) = (ptr::null_mut(), ptr::from_ref(lease.lender).cast_mut());
        // Of two lenders that come first at once, one is.
        let _ = self.lender.compare_exchange(nobody, lender, Ordering::Release, Ordering::Relaxed);
        self.lease_again(lease)
    }

    /// Forgets who has leased, unless it is the calling thread's lender. Nobody else has a reference, and no lease lasts.
    #[inline]
    fn forget_others(&self) {
        let lender = self.lender.load(Ordering::Relaxed);
        if !lender.is_null() && !Lender::is_of_thread(lender) {
            self.lender.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// Who has leased, and which lease was the last.
    #[inline]
    fn leased(&self) -> (*mut Lender, usize) {
        (self.lender.load(Ordering::Acquire), self.serial.load(Ordering::Acquire))
    }
}

/// What becomes of a counted reference that is dropped.
enum Fate {
    /// It was counted down.
    Counted,
    /// It was the last, of which the lender must be left the reference: a list may show it still.
    Lent(&'static Lender, usize),
    /// It was the last, and nobody else sees the value.
    Last,
}

impl Head {
    /// Drops one counted reference.
    ///
    /// # Safety
    /// `head` is that of a counted reference, which is not used again but as what is returned says.
    #[inline]
    unsafe fn drop_one(head: NonNull<Head>) -> Fate {
        // A reference for the length of this call would outlast the place, which others may end once this one is counted down.
        // SAFETY: the place is there while the reference is counted.
        let this = unsafe { head.as_ref() };
        loop {
            let count = this.count.load(Ordering::Relaxed);
            if count > 1 {
                // Never to none: of two that go at once, one must see that it is the last.
                if this.count.compare_exchange(count, count - 1, Ordering::Release, Ordering::Relaxed).is_ok() {
                    return Fate::Counted;
                }
                continue;
            }
            // A lease that is over stays over, so from here on a list shows this only by another. That would be noted before the
            // reference by which the list was shown it is counted down, which is before there is one left.
            let leased = this.leased();
            // SAFETY: lenders stay for the process.
            let lender = unsafe { leased.0.as_ref() };
            let lasts = lender.filter(|lender| lender.lasts(leased.1));
            if this.count.load(Ordering::Acquire) > 1 {
                // By a list that showed it.
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
    /// A value in new memory.
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

    /// The first counted reference.
    #[inline]
    pub fn share(self) -> Counted<T>
    where
        T: Last,
    {
        let place = self.0;
        mem::forget(self);
        // SAFETY: it was this one's.
        unsafe { place.as_ref() }.head.forget_others();
        // The count has been one all the time.
        Counted(place, PhantomData)
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the place is this one's, until it is dropped or shared.
        let place = unsafe { self.0.as_ref() };
        &place.value
    }
}

impl<T> DerefMut for Own<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and nobody else has a reference.
        let place = unsafe { self.0.as_mut() };
        &mut place.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        // SAFETY: the place came out of a box, and is this one's.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: Last> Counted<T> {
    /// The first reference to a value.
    pub fn new(value: T) -> Counted<T> {
        Own::new(value).share()
    }

    #[inline]
    fn place(&self) -> &Place<T> {
        // SAFETY: a place lasts as long as a reference is counted, or a list shows it that has leased it.
        unsafe { self.0.as_ref() }
    }

    /// Notes a lease, as long as which a reference of this one's lasts that is [not counted](Self::uncounted). False where leases of
    /// another lender are noted: then it must be counted.
    pub(crate) fn lend(&self, lease: &Lease) -> bool {
        self.place().head.lease(lease)
    }

    /// The same, quicker; false also of what was never lent.
    #[inline]
    pub(crate) fn lend_again(&self, lease: &Lease) -> bool {
        self.place().head.lease_again(lease)
    }

    /// The same reference once more.
    ///
    /// # Safety
    /// One of the two is not dropped, and it is not used behind the other, unless [lent](Counted::lend) and as long as the lease lasts.
    #[inline]
    pub(crate) unsafe fn uncounted(&self) -> Counted<T> {
        Counted(self.0, PhantomData)
    }

    /// The same, of whatever type.
    pub(crate) fn of_any_type(self) -> Any {
        let place = self.0;
        mem::forget(self);
        Any(place.cast())
    }
}

/// More references than can be counted down again; so many can only have been forgotten.
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
        // Nothing is ordered by it: this reference keeps the place meanwhile.
        if self.place().head.count.fetch_add(1, Ordering::Relaxed) > MOST {
            self.too_many();
        }
        // SAFETY: it was just counted.
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
        // SAFETY: it is a counted reference, unless it is a hoard's, which are not dropped; below it is only left, or the last.
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

/// A counted reference of whatever type.
pub(crate) struct Any(NonNull<Head>);

// SAFETY: as for what it was made of, which all may be sent and shared.
unsafe impl Send for Any {}
// SAFETY: as above.
unsafe impl Sync for Any {}

impl Any {
    pub(crate) fn into_raw(self) -> NonNull<Head> {
        let head = self.0;
        mem::forget(self);
        head
    }

    /// # Safety
    /// `head` came from [`Any::into_raw`], and comes back once.
    pub(crate) unsafe fn from_raw(head: NonNull<Head>) -> Any {
        Any(head)
    }
}

impl Drop for Any {
    fn drop(&mut self) {
        // SAFETY: it is a counted reference, so the place is there.
        let drop = unsafe { self.0.as_ref() }.drop;
        // SAFETY: the function is that of the type; the reference is not used again.
        unsafe { drop(self.0) };
    }
}

/// Drops a reference to a `T`.
///
/// # Safety
/// `head` is that of a `T`, and stands for a counted reference, which is gone behind this.
unsafe fn drop_counted<T: Last>(head: NonNull<Head>) {
    // The head is the first field, and was pointed to with all of the place.
    drop(Counted::<T>(head.cast(), PhantomData));
}

#[cfg(all(test, loom))]
#[path = "counted_tests.rs"]
mod loom_tests;

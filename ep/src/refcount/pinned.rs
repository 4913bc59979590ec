//! Pinned references: a vector of items, each with one reference to a counted value, that keeps these values alive.
//!
//! The vector pins the values by one [`EpochGuard`] instead of counting its references. It counts only the references to values that
//! its guard cannot pin. The module [`refcount`](crate::refcount) explains the algorithm.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;

use crate::refcount::counted::{Counted, Erased, Recycle};
use crate::refcount::epoch_guard::EpochGuard;

/// The shape of the items of [`PinnedRefs`]: an item has exactly one reference, to a value of type `A` or of type `B`.
///
/// [`PinnedRefs`] passes uncounted references to [`map`](EitherRef::map), and they must not escape. The methods guarantee it by being
/// generic: an implementation does not know the types of the references, so it can only put them into the item that it returns.
pub trait EitherRef {
    /// The type of one kind of values.
    type A: Recycle;
    /// The type of the other kind of values.
    type B: Recycle;
    /// An item that has either an `A` or a `B`.
    type With<A, B>;

    /// Replaces the reference in `item` by the result of `a` or `b`, which is called once with `with` and the old reference.
    fn map<S, A, B, C, D>(
        item: Self::With<A, B>,
        with: S,
        a: impl FnOnce(S, A) -> C,
        b: impl FnOnce(S, B) -> D,
    ) -> Self::With<C, D>;

    /// The same item with its reference borrowed.
    fn by_reference<A, B>(item: &Self::With<A, B>) -> Self::With<&A, &B>;
}

/// A reference in [`PinnedRefs`], which keeps its value alive.
#[repr(transparent)]
pub struct PinnedRef<T: Recycle>(ManuallyDrop<Counted<T>>);

impl<T: Recycle + fmt::Debug> fmt::Debug for PinnedRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<E: EitherRef> fmt::Debug for PinnedRefs<E>
where
    PinnedItem<E>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}

impl<T: Recycle> Deref for PinnedRef<T> {
    type Target = Counted<T>;

    #[inline]
    fn deref(&self) -> &Counted<T> {
        &self.0
    }
}

/// An item in [`PinnedRefs`].
pub type PinnedItem<E> = <E as EitherRef>::With<PinnedRef<<E as EitherRef>::A>, PinnedRef<<E as EitherRef>::B>>;

/// An item as the caller passes it to [`PinnedRefs::push`]: it borrows a counted reference.
pub type BorrowedItem<'a, E> =
    <E as EitherRef>::With<&'a Counted<<E as EitherRef>::A>, &'a Counted<<E as EitherRef>::B>>;

/// A vector of items. The values that they refer to stay alive until the vector is cleared or dropped.
pub struct PinnedRefs<E: EitherRef> {
    items: Vec<PinnedItem<E>>,
    pins: Pins,
}

/// The guard and the counted references that keep the values alive.
#[derive(Default)]
struct Pins {
    /// The guard that pins values; `None` before it is needed, and if the thread could begin no epoch.
    guard: Option<EpochGuard>,
    /// Whether it was tried to begin an epoch.
    tried: bool,
    /// Counted references to the values that the guard cannot pin.
    counted: Vec<Erased>,
}

impl Pins {
    #[inline]
    fn pin<T: Recycle>(&mut self, reference: &Counted<T>) -> PinnedRef<T> {
        if !self.guard.as_ref().is_some_and(|guard| reference.pin_again(guard)) {
            self.pin_slow(reference);
        }
        // SAFETY: the copy is never dropped, because of `ManuallyDrop`. Either the guard pins the value or `counted` has a reference
        // to it, and both live as long as the copy, which does not leave the vector.
        PinnedRef(ManuallyDrop::new(unsafe { reference.uncounted() }))
    }

    /// Pins or counts a value that was never pinned before, or that another participant pinned before.
    #[cold]
    fn pin_slow<T: Recycle>(&mut self, reference: &Counted<T>) {
        if !mem::replace(&mut self.tried, true) {
            self.guard = EpochGuard::of_this_thread();
        }
        if !self.guard.as_ref().is_some_and(|guard| reference.pin(guard)) {
            self.counted.push(reference.clone().erase());
        }
    }
}

impl<E: EitherRef> Default for PinnedRefs<E> {
    fn default() -> PinnedRefs<E> {
        PinnedRefs { items: Vec::new(), pins: Pins::default() }
    }
}

impl<E: EitherRef> PinnedRefs<E> {
    /// Removes all items and lets go of their values, but keeps the capacity.
    pub fn clear(&mut self) {
        self.items.clear();
        self.pins.counted.clear();
        (self.pins.guard, self.pins.tried) = (None, false);
    }

    /// The items.
    #[inline]
    pub fn as_slice(&self) -> &[PinnedItem<E>] {
        &self.items
    }

    /// The number of items that fit without a new allocation, or of counted references if these are more.
    pub fn capacity(&self) -> usize {
        self.items.capacity().max(self.pins.counted.capacity())
    }

    /// Removes the items from `len` on. Their values stay alive until the vector is cleared or dropped.
    pub fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }
}

/// The bound `Copy` excludes interior mutability: no item can lose its reference through a shared borrow, so its value
/// stays alive.
impl<E: EitherRef> PinnedRefs<E>
where
    E::With<(), ()>: Copy,
{
    /// Adds an item and keeps its value alive.
    #[inline]
    pub fn push(&mut self, item: BorrowedItem<'_, E>) {
        let item = E::map(item, &mut self.pins, Pins::pin, Pins::pin);
        self.items.push(item);
    }

    /// Adds the items of `other` at the end.
    pub fn append(&mut self, other: &PinnedRefs<E>) {
        for item in &other.items {
            self.push(E::map(E::by_reference(item), (), |(), pinned| &**pinned, |(), pinned| &**pinned));
        }
    }
}

#[cfg(test)]
#[path = "pinned_tests.rs"]
mod tests;

//! Hoards: vectors of references that pin their values by a lease, and count references only where a lease cannot.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;

use crate::refcount::counted::{Any, Counted, Last};
use crate::refcount::lease::Lease;

/// The shape of a value in a hoard: a type that has one reference, to an object of type `A` or `B`.
///
/// A hoard passes uncounted references to [`map`](Pair::map), and they must not escape. The methods guarantee it by being generic: an
/// implementation does not know the types of the references, so it can only put them into the value that it returns.
pub trait Pair {
    /// The type of one kind of objects.
    type A: Last;
    /// The type of the other kind of objects.
    type B: Last;
    /// A value that has either an `A` or a `B`.
    type With<A, B>;

    /// Replaces the reference in `it` by the result of `a` or `b`, which is called once with `with` and the old reference.
    fn map<S, A, B, C, D>(
        it: Self::With<A, B>,
        with: S,
        a: impl FnOnce(S, A) -> C,
        b: impl FnOnce(S, B) -> D,
    ) -> Self::With<C, D>;

    /// The same value with its reference borrowed.
    fn by_reference<A, B>(it: &Self::With<A, B>) -> Self::With<&A, &B>;
}

/// A reference that a hoard holds. It is valid as long as the hoard holds it.
#[repr(transparent)]
pub struct Kept<T: Last>(ManuallyDrop<Counted<T>>);

impl<T: Last + fmt::Debug> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<P: Pair> fmt::Debug for Hoard<P>
where
    Held<P>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.values).finish()
    }
}

impl<T: Last> Deref for Kept<T> {
    type Target = Counted<T>;

    #[inline]
    fn deref(&self) -> &Counted<T> {
        &self.0
    }
}

/// A value as a hoard holds it.
pub type Held<P> = <P as Pair>::With<Kept<<P as Pair>::A>, Kept<<P as Pair>::B>>;

/// A value as the caller passes it to a hoard.
pub type Shown<'a, P> = <P as Pair>::With<&'a Counted<<P as Pair>::A>, &'a Counted<<P as Pair>::B>>;

/// A vector of values. The objects that they refer to stay alive until the hoard is cleared or dropped.
pub struct Hoard<P: Pair> {
    values: Vec<Held<P>>,
    holds: Holds,
}

/// The lease and the references that keep the objects of a hoard alive.
#[derive(Default)]
struct Holds {
    /// The lease; `None` before it is needed, and if the thread could give none.
    lease: Option<Lease>,
    /// Whether the hoard has tried to begin a lease.
    asked: bool,
    /// Counted references to the objects that the lease cannot pin.
    counted: Vec<Any>,
}

impl Holds {
    #[inline]
    fn keep<T: Last>(&mut self, shown: &Counted<T>) -> Kept<T> {
        if !self.lease.as_ref().is_some_and(|lease| shown.lend_again(lease)) {
            self.keep_first(shown);
        }
        // SAFETY: the copy is never dropped, because of `ManuallyDrop`. Either the lease pins the object or `counted` holds a reference
        // to it, and both last as long as the copy, which does not leave the hoard.
        Kept(ManuallyDrop::new(unsafe { shown.uncounted() }))
    }

    /// Holds an object that was never pinned before, or whose leases are those of another lender.
    #[cold]
    fn keep_first<T: Last>(&mut self, shown: &Counted<T>) {
        if !mem::replace(&mut self.asked, true) {
            self.lease = Lease::of_thread();
        }
        if !self.lease.as_ref().is_some_and(|lease| shown.lend(lease)) {
            self.counted.push(shown.clone().of_any_type());
        }
    }
}

impl<P: Pair> Default for Hoard<P> {
    fn default() -> Hoard<P> {
        Hoard { values: Vec::new(), holds: Holds::default() }
    }
}

impl<P: Pair> Hoard<P> {
    /// Removes all values and releases their objects, but keeps the capacity.
    pub fn clear(&mut self) {
        self.values.clear();
        self.holds.counted.clear();
        (self.holds.lease, self.holds.asked) = (None, false);
    }

    /// The values.
    #[inline]
    pub fn as_slice(&self) -> &[Held<P>] {
        &self.values
    }

    /// The number of values that fit without a new allocation, or of counted references if these are more.
    pub fn capacity(&self) -> usize {
        self.values.capacity().max(self.holds.counted.capacity())
    }

    /// Removes the values from `len` on. Their objects stay alive until the hoard is cleared or dropped.
    pub fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }
}

/// The bound `Copy` excludes interior mutability: no value can lose its reference through a shared borrow, so its object stays held.
impl<P: Pair> Hoard<P>
where
    P::With<(), ()>: Copy,
{
    /// Adds a value.
    #[inline]
    pub fn push(&mut self, shown: Shown<'_, P>) {
        let value = P::map(shown, &mut self.holds, Holds::keep, Holds::keep);
        self.values.push(value);
    }

    /// Adds the values of `other` behind the own ones.
    pub fn append(&mut self, other: &Hoard<P>) {
        for value in &other.values {
            self.push(P::map(P::by_reference(value), (), |(), kept| &**kept, |(), kept| &**kept));
        }
    }
}

#[cfg(test)]
#[path = "hoard_tests.rs"]
mod tests;

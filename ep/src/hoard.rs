//! Hoards: what a list holds, without counting where it can.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;

use crate::counted::{Any, Counted, Last};
use crate::lease::Lease;

/// What a hoard holds: values that each have one reference, to one of two kinds of things.
///
/// A hoard hands in references that must not leave it. They do not, as an implementation knows nothing of their types: it can do
/// nothing with one but put it into what it returns.
pub trait Pair {
    /// One kind of things.
    type A: Last;
    /// The other kind.
    type B: Last;
    /// A value with a reference of one of two types.
    type With<A, B>;

    /// The value with another reference, made by `a` or `b` of the one that it has and of `with`.
    fn map<S, A, B, C, D>(
        it: Self::With<A, B>,
        with: S,
        a: impl FnOnce(S, A) -> C,
        b: impl FnOnce(S, B) -> D,
    ) -> Self::With<C, D>;

    /// The value with its reference by reference.
    fn by_reference<A, B>(it: &Self::With<A, B>) -> Self::With<&A, &B>;
}

/// A reference of a hoard's, which lasts as long as that.
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

/// A value that a hoard holds.
pub type Held<P> = <P as Pair>::With<Kept<<P as Pair>::A>, Kept<<P as Pair>::B>>;

/// A value that a hoard is shown.
pub type Shown<'a, P> = <P as Pair>::With<&'a Counted<<P as Pair>::A>, &'a Counted<<P as Pair>::B>>;

/// Values, of which each holds what it refers to until the hoard is cleared or dropped.
pub struct Hoard<P: Pair> {
    values: Vec<Held<P>>,
    holds: Holds,
}

/// How it holds things.
#[derive(Default)]
struct Holds {
    /// Its lease; `None` before it needs one, and where it gets none.
    lease: Option<Lease>,
    /// Whether it has asked for a lease.
    asked: bool,
    /// Counted references to what the lease is no good for.
    counted: Vec<Any>,
}

impl Holds {
    #[inline]
    fn keep<T: Last>(&mut self, shown: &Counted<T>) -> Kept<T> {
        if !self.lease.as_ref().is_some_and(|lease| shown.lend_again(lease)) {
            self.keep_first(shown);
        }
        // SAFETY: it is never dropped. It is lent, or a counted one lies beside the lease: as long as either it is used, as it does not
        // leave its hoard.
        Kept(ManuallyDrop::new(unsafe { shown.uncounted() }))
    }

    /// Holds what was never leased, or not by this lender.
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
    /// Lets go of all, and keeps its room.
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

    /// How many values it has room for, be it for their counted references alone.
    pub fn capacity(&self) -> usize {
        self.values.capacity().max(self.holds.counted.capacity())
    }

    /// Forgets the values from `len` on. What they refer to is held until the hoard is cleared or dropped.
    pub fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }
}

/// What can be copied, where its references can, has no place that could be emptied through a shared reference: what is held stays.
impl<P: Pair> Hoard<P>
where
    P::With<(), ()>: Copy,
{
    /// Holds one value more.
    #[inline]
    pub fn push(&mut self, shown: Shown<'_, P>) {
        let value = P::map(shown, &mut self.holds, Holds::keep, Holds::keep);
        self.values.push(value);
    }

    /// Holds the values of another one too, behind its own.
    pub fn append(&mut self, other: &Hoard<P>) {
        for value in &other.values {
            self.push(P::map(P::by_reference(value), (), |(), kept| &**kept, |(), kept| &**kept));
        }
    }
}

#[cfg(test)]
#[path = "hoard_tests.rs"]
mod tests;

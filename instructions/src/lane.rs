//! Lanes: a number that tells apart several streams of one type on one device.

use std::cell::Cell;
use std::marker::PhantomData;

use streamvm_ep::Scopes;

thread_local! {
    static LANE: Cell<u32> = const { Cell::new(0) };
    static SCOPES: Scopes<u32> = const { Scopes::new() };
}

/// A number that tells apart several streams of one type on one device. A thread's eager calls use its current lane.
///
/// Any number will do. The streams of a lane are opened when it is first used, and stay; an engine has at most 1,024 streams. [`LanePool`](crate::LanePool)
/// hands out lanes for requests.
///
/// An [`InstructionsBuilder`](crate::InstructionsBuilder) keeps the lane that was current when it was made: entering another lane later does
/// not move its instructions. [`InstructionsBuilder::on_lane`](crate::InstructionsBuilder::on_lane) changes the lane of a builder for a scope.
///
/// ```
/// use streamvm_instructions::Lane;
/// let _outer = Lane(1).enter();
/// {
///     let _inner = Lane(2).enter();
///     assert_eq!(Lane::current(), Lane(2));
/// }
/// assert_eq!(Lane::current(), Lane(1));
/// assert_eq!(Lane(3).run(Lane::current), Lane(3));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lane(pub u32);

impl Lane {
    /// The current lane of this thread: 0 where none was entered.
    pub fn current() -> Lane {
        Lane(LANE.get())
    }

    /// Makes this the current lane of the thread until the guard is dropped. Guards nest, and may be dropped in any order. Builders that exist already keep their lane.
    #[must_use = "the lane is left when the guard is dropped"]
    pub fn enter(self) -> LaneGuard {
        LANE.set(self.0);
        LaneGuard { number: SCOPES.with(|scopes| scopes.begin(self.0)), here: PhantomData }
    }

    /// Calls `f` with the lane [entered](Lane::enter): `Lane(1).run(|| x.relu())?`. In async code this keeps a guard from living over an `.await`.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let _lane = self.enter();
        f()
    }
}

/// Keeps a [`Lane`] current on a thread.
#[derive(Debug)]
pub struct LaneGuard {
    number: u64,
    /// Makes the guard `!Send`: the lane is a thread-local of the thread that entered it.
    here: PhantomData<*const ()>,
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        // A guard that is dropped with the thread may find that the other variables are gone.
        let before = SCOPES.try_with(|scopes| {
            scopes.end(self.number);
            scopes.last()
        });
        LANE.set(before.ok().flatten().unwrap_or_default());
    }
}

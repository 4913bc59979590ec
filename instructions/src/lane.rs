//! Lanes: a number that tells apart several streams of one type on one device.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static LANE: Cell<u32> = const { Cell::new(0) };
}

/// The lane of this thread's eager calls and new builders: 0 where no guard is alive.
pub fn current_lane() -> u32 {
    LANE.get()
}

/// Sets the lane of this thread's eager calls and new builders until the guard is dropped. Guards nest.
///
/// ```
/// use streamvm_instructions::{current_lane, lane};
/// let _outer = lane(1);
/// {
///     let _inner = lane(2);
///     assert_eq!(current_lane(), 2);
/// }
/// assert_eq!(current_lane(), 1);
/// ```
#[must_use = "the lane is left when the guard is dropped"]
pub fn lane(lane: u32) -> LaneGuard {
    LaneGuard { before: LANE.replace(lane), here: PhantomData }
}

/// Keeps a lane set on a thread; see [`lane`].
#[derive(Debug)]
pub struct LaneGuard {
    before: u32,
    /// Makes the guard `!Send`: the lane is a thread-local of the thread that made the guard.
    here: PhantomData<*const ()>,
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        LANE.set(self.before);
    }
}

//! Lanes: which of several streams of one type a thread's calls go to.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static LANE: Cell<u32> = const { Cell::new(0) };
}

/// The lane that eager calls and new builders of this thread use: 0 outside of any guard.
pub fn current_lane() -> u32 {
    LANE.get()
}

/// Moves the eager calls and new builders of this thread to another lane until the guard is dropped. Guards nest.
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

/// Keeps a thread on a lane; see [`lane`].
#[derive(Debug)]
pub struct LaneGuard {
    before: u32,
    /// The lane belongs to the thread that made the guard.
    here: PhantomData<*const ()>,
}

impl Drop for LaneGuard {
    fn drop(&mut self) {
        LANE.set(self.before);
    }
}

//! [`LanePool`]: lanes for requests in flight.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lane::Lane;

/// Lanes of which each is taken by one request at a time, so that no request holds up another. Clones share the lanes. `Send + Sync`; never blocks.
///
/// A lane opens streams when it is first used, and an engine has at most 1,024 streams: two or three for each lane that computes and copies.
///
/// ```
/// use streamvm_instructions::{Lane, LanePool};
/// let lanes = LanePool::new(1..3);
/// let (first, second) = (lanes.take().expect("a free lane"), lanes.take().expect("a free lane"));
/// assert_eq!([*first, *second], [Lane(1), Lane(2)]);
/// assert!(lanes.take().is_none(), "both are taken: refuse the request, or let it wait");
/// first.run(|| { /* calls of one request */ });
/// drop(first); // or, to keep the lane until the work has passed: `y.on_passed(move |_| drop(first))`
/// assert_eq!(lanes.take().as_deref(), Some(&Lane(1)));
/// ```
#[derive(Clone, Debug)]
pub struct LanePool {
    /// The lane that is taken next is last.
    free: Arc<Mutex<Vec<u32>>>,
}

impl LanePool {
    /// A pool of these lanes, all of them free. Lane 0 is the lane of calls that enter none.
    pub fn new(lanes: Range<u32>) -> LanePool {
        LanePool { free: Arc::new(Mutex::new(lanes.rev().collect())) }
    }

    /// Takes the lane that was given back last. `None` if all are taken.
    pub fn take(&self) -> Option<TakenLane> {
        let lane = Lane(self.free().pop()?);
        Some(TakenLane { lane, pool: self.clone() })
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        // No code that can panic runs under the lock.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`Lane`] of a [`LanePool`], free again once this is dropped. It can be moved to other threads and kept over an `.await`, because it enters nothing by itself.
#[derive(Debug)]
#[must_use = "the lane is free again when this is dropped"]
pub struct TakenLane {
    lane: Lane,
    pool: LanePool,
}

impl Deref for TakenLane {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        &self.lane
    }
}

impl Drop for TakenLane {
    fn drop(&mut self) {
        self.pool.free().push(self.lane.0);
    }
}

//! Observations: the points that the submitter has seen to have passed. They are the part of the pass's input that depends on time.

use streamvm_stream::{Point, StreamId};

/// The points that were seen to have passed when a list was submitted: one snapshot per list. It is an input of the pass, so the
/// waits of a list are a function of the list, the state and the snapshot, and can be reproduced.
pub trait Observed {
    /// The highest sequence number of an ordered stream that was seen to have passed. The result for a stream must not change
    /// during one list.
    fn passed(&mut self, stream: StreamId) -> u64;

    /// Whether the point was seen to have passed. The default implementation returns false for every point of an unordered stream.
    fn has_passed(&mut self, point: Point) -> bool {
        !point.stream.is_unordered() && self.passed(point.stream) >= point.seq
    }

    /// Whether the point was seen to have passed and is known not to have failed, so that it needs no wait and carries no failure.
    /// `false` means unknown.
    fn passed_without_failure(&mut self, _: Point) -> bool {
        false
    }
}

/// An observation of nothing: every wait that the data needs appears in the plan.
#[derive(Copy, Clone, Debug, Default)]
pub struct NothingObserved;

impl Observed for NothingObserved {
    fn passed(&mut self, _: StreamId) -> u64 {
        0
    }
}

//! What the submitter has seen to pass: the part of the pass's input that depends on time.

use streamvm_stream::{Point, StreamId};

/// What was seen to have passed when a list was submitted: one snapshot per list. It is an input of the pass, so that
/// the waits of a list are a function of what it is given, and can be written down beside it.
pub trait Observed {
    /// The highest sequence number of the ordered stream that was seen to have passed. The same answer for the same
    /// stream all through one list.
    fn passed(&mut self, stream: StreamId) -> u64;

    /// Whether the point was seen to have passed. As it stands it knows ordered streams alone.
    fn has_passed(&mut self, point: Point) -> bool {
        !point.stream.is_unordered() && self.passed(point.stream) >= point.seq
    }

    /// Whether the point was seen to have passed and is known not to have failed: it needs no wait and carries no failure. `false` means
    /// unknown.
    fn is_over(&mut self, _: Point) -> bool {
        false
    }
}

/// Nothing was seen to pass: every wait that the data needs appears.
#[derive(Copy, Clone, Debug, Default)]
pub struct NothingObserved;

impl Observed for NothingObserved {
    fn passed(&mut self, _: StreamId) -> u64 {
        0
    }
}

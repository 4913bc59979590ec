//! Points: the elements of order.
//!
//! A point names everything on one stream up to and including one sequence number. Dependences, clocks, free blocks and tickets
//! hold points; an event is only the way in which a device shows that a point has passed.

use std::fmt;

/// The dense number of a stream within one engine, given by [`Streams::intern`](crate::Streams::intern).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u32);

/// Flag of the ids of unordered streams, so that code can tell from a point alone whether it implies earlier points.
const UNORDERED: u32 = 1 << 31;

impl StreamId {
    /// The id of the unordered stream with this index in per-stream tables.
    pub const fn unordered(index: u32) -> StreamId {
        StreamId(index | UNORDERED)
    }

    /// Whether instructions of the stream run as soon as their dependences are satisfied: then its points do not imply each other.
    #[inline]
    pub fn is_unordered(self) -> bool {
        self.0 & UNORDERED != 0
    }

    /// The number as an index into per-stream tables.
    #[inline]
    pub fn index(self) -> usize {
        (self.0 & !UNORDERED) as usize
    }
}

/// "Everything on this stream up to here"; on an unordered stream, only the instruction with this number. Sequence numbers start at
/// 1; number 0 is before the first instruction.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Point {
    /// The stream.
    pub stream: StreamId,
    /// The sequence number of the last instruction that belongs to the point.
    pub seq: u64,
}

impl Point {
    /// The point at sequence number `seq` of `stream`.
    pub fn new(stream: StreamId, seq: u64) -> Point {
        Point { stream, seq }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}@{}", self.stream.index(), self.seq)
    }
}

//! Points: what order is made of.
//!
//! A point names everything on one stream up to and including one sequence number. Events are only how a device
//! shows a point; dependences, clocks, free blocks and tickets hold points.

use std::fmt;

/// A stream's dense number within one VM, given by [`Streams::intern`](crate::Streams::intern).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u32);

/// Marks the ids of unordered streams: what a point says about others is known without a look at a table.
const UNORDERED: u32 = 1 << 31;

impl StreamId {
    /// The id of the unordered stream with this place in per-stream tables.
    pub const fn unordered(index: u32) -> StreamId {
        StreamId(index | UNORDERED)
    }

    /// Whether instructions of the stream run as soon as their needs are met: then its points say nothing about each other.
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

/// "Everything on this stream up to here"; on an unordered stream, the one instruction of this number. Sequence numbers start
/// at 1; 0 is before the first instruction.
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

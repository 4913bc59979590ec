//! Points: what order is made of.
//!
//! A point names everything on one stream up to and including one sequence number. Events are only how a device
//! shows a point; dependences, clocks, free blocks and tickets hold points.

use std::fmt;

/// A stream's dense number within one VM, given by [`Streams::intern`](crate::Streams::intern).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u32);

impl StreamId {
    /// The number as an index into per-stream tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// "Everything on this stream up to here". Sequence numbers start at 1; 0 is before the first instruction.
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
        write!(f, "s{}@{}", self.stream.0, self.seq)
    }
}

//! A trace in memory: what the lines say, checked and with names turned into indices.
//!
//! Invariants, kept by [`read`](crate::read), which alone makes one: every stream, life and text that is named is there;
//! numbers on a stream are 1, 2, 3, …; runs are ascending and apart; the host has only seen points that were submitted
//! before. What a broken engine may write is *not* refused but found by [`verify`](crate::verify()): waits for points
//! that come later or never, events that nobody recorded, uses of memory that is freed or not the life's own.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// "Everything on this stream up to here"; on an unordered stream, this one instruction.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(into = "(u64, u64)")]
pub struct Point {
    /// The stream's id, as in the trace.
    pub stream: u64,
    /// The number on the stream, from 1 on.
    pub seq: u64,
}

impl From<Point> for (u64, u64) {
    fn from(point: Point) -> (u64, u64) {
        (point.stream, point.seq)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{},{}]", self.stream, self.seq)
    }
}

/// A trace that was read. `docs/trace.md` says what its lines mean.
#[derive(Debug, Default)]
pub struct Trace {
    pub(crate) streams: Vec<Stream>,
    pub(crate) lives: Vec<Life>,
    pub(crate) actions: Vec<Action>,
    pub(crate) uses: Vec<Use>,
    pub(crate) runs: Vec<(u64, u64)>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) points: Vec<At>,
    pub(crate) texts: Vec<Box<str>>,
    /// The last line says that it is the last.
    pub(crate) complete: bool,
    /// Uses whose runs are a hull.
    pub(crate) hulls: u64,
}

/// A point, with its stream as an index.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct At {
    pub(crate) stream: u32,
    pub(crate) seq: u32,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: u64,
    pub(crate) name: Box<str>,
    pub(crate) ordered: bool,
}

#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) id: u64,
    pub(crate) place: Box<str>,
    /// `None` for a variable.
    pub(crate) memory: Option<Range<u64>>,
}

/// A text by its number.
pub(crate) type Text = u32;

/// One line that matters, and where it stands.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) line: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// A life begins; its index.
    Life(u32),
    /// A life ends.
    Free(u32),
    Unmap(Range<u64>),
    /// Points, a range of [`Trace::points`].
    Observed(Range<u32>),
    Record {
        event: u64,
        point: At,
    },
    Instruction(Instruction),
    Host {
        op: Text,
        site: Text,
        uses: Range<u32>,
    },
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) at: At,
    pub(crate) op: Text,
    pub(crate) site: Text,
    pub(crate) uses: Range<u32>,
    pub(crate) waits: Range<u32>,
    pub(crate) order: Order,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Uses,
    After(At),
    All,
    Barrier,
}

#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) life: u32,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) hull: bool,
    pub(crate) runs: Range<u32>,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) point: At,
    pub(crate) by_host: bool,
    pub(crate) event: Option<u64>,
}

impl Trace {
    pub(crate) fn uses_of(&self, range: &Range<u32>) -> &[Use] {
        &self.uses[range.start as usize..range.end as usize]
    }

    pub(crate) fn runs_of(&self, u: &Use) -> &[(u64, u64)] {
        &self.runs[u.runs.start as usize..u.runs.end as usize]
    }

    pub(crate) fn waits_of(&self, range: &Range<u32>) -> &[Wait] {
        &self.waits[range.start as usize..range.end as usize]
    }

    pub(crate) fn points_of(&self, range: &Range<u32>) -> &[At] {
        &self.points[range.start as usize..range.end as usize]
    }

    pub(crate) fn text(&self, text: Text) -> &str {
        &self.texts[text as usize]
    }

    /// The point as the trace names it.
    pub(crate) fn point(&self, at: At) -> Point {
        Point { stream: self.streams[at.stream as usize].id, seq: u64::from(at.seq) }
    }
}

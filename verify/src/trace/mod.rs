//! A trace in memory: the contents of its lines, checked, with names replaced by indices.
//!
//! Layer: uses no other folder; is used by all of them.
//!
//! Main types: a [`Trace`] has the [`Action`]s of the file in their order; [`Trace::read`] makes one from text, within
//! [`Limits`](read::Limits); a [`Point`] is an instruction by its stream and its number there.
//!
//! Invariants, established by [`read`], the only module that makes a trace:
//! * Every stream, life and text that is named exists.
//! * The sequence numbers of a stream are 1, 2, 3, ….
//! * The runs of a use are ascending and disjoint.
//! * The host has only seen points pass that were submitted before.
//!
//! Mistakes that a broken engine may make are *not* refused here; [`verify`](crate::verify()) finds them: waits for points that
//! come later or never, events that were never recorded, uses of freed memory or of memory outside the life.

mod lines;
pub(crate) mod read;

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// "Everything on this stream up to here"; on an unordered stream, only this instruction.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(into = "(u64, u64)")]
pub struct Point {
    /// The stream's id, as in the trace.
    pub stream: u64,
    /// The sequence number on the stream, counted from 1.
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

/// A trace that was read. `docs/trace.md` defines the meaning of its lines.
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
    /// Whether the trace has its last line.
    pub(crate) complete: bool,
    /// The line in the middle of which the file ends, if it does.
    pub(crate) cut_line: Option<u64>,
    /// The number of uses whose run is a hull.
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

/// The number of a text in the table of texts.
pub(crate) type Text = u32;

/// The content of one line that matters for the verification, with its line number.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) line: u64,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    /// A life begins; its index.
    Life(u32),
    /// A life ends; its index.
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
        location: Text,
        uses: Range<u32>,
    },
}

#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) at: At,
    pub(crate) op: Text,
    pub(crate) location: Text,
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

    /// The point with the stream's id from the trace.
    pub(crate) fn point(&self, at: At) -> Point {
        Point { stream: self.streams[at.stream as usize].id, seq: u64::from(at.seq) }
    }
}

//! Records: the events that were recorded on a stream that shows its points by events.
//!
//! A record marks the point of the instruction before it, and takes no number of its own. A need is satisfied by the earliest
//! record at or after it. If there is none, the pass adds a record: right behind the needed instruction if that is in the current
//! list, else before the list's first instruction on that stream, so that the record waits for no new work.

use std::collections::VecDeque;

use streamvm_stream::Point;
use streamvm_stream::mutant::{Mutant, Planted};

/// The number of records that a stream remembers. A need older than these uses a later record: one longer wait, never a wrong one.
const REMEMBERED: usize = 32;

/// The position of a planned record.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RecordPlace {
    /// Before the stream's first instruction of this list.
    Start,
    /// Right behind the instruction of this line of the list.
    Behind(usize),
}

/// A record that the pass adds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PlannedRecord {
    /// The point that it marks; it also identifies the record.
    pub point: Point,
    /// Its position.
    pub place: RecordPlace,
}

/// The records of one stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    /// The recorded sequence numbers, ascending.
    recorded: VecDeque<u64>,
    /// The stream's last number before the current list.
    before: u64,
    /// (sequence number, list line) of the stream's instructions in the current list.
    lines: Vec<(u64, usize)>,
}

impl Records {
    /// Starts a list; `last` is the stream's last number before it.
    pub(super) fn begin(&mut self, last: u64) {
        self.before = last;
        self.lines.clear();
    }

    /// Notes that instruction `seq` of the stream is on `line` of the list.
    pub(super) fn next_line(&mut self, seq: u64, line: usize) {
        self.lines.push((seq, line));
    }

    /// The highest number with a record.
    pub(super) fn last(&self) -> Option<u64> {
        self.recorded.back().copied()
    }

    /// The point of the earliest record at or after `point`. If there is none, adds one to `records`.
    pub(super) fn at_or_after(&mut self, point: Point, records: &mut Vec<PlannedRecord>, planted: Planted) -> Point {
        let next = self.recorded.partition_point(|&seq| seq < point.seq);
        if let Some(&seq) = self.recorded.get(next) {
            return Point::new(point.stream, seq);
        }
        let (seq, place) = if point.seq > self.before {
            let found = self.lines.binary_search_by_key(&point.seq, |(seq, _)| *seq);
            let Ok(index) = found else { unreachable!("a number past `before` was given to a line of this list") };
            let index = if planted.is(Mutant::RecordBefore) { index.checked_sub(1) } else { Some(index) };
            (point.seq, index.map_or(RecordPlace::Start, |index| RecordPlace::Behind(self.lines[index].1)))
        } else {
            (self.before, RecordPlace::Start)
        };
        let shown = Point::new(point.stream, seq);
        if seq == 0 {
            // Before the stream's first instruction there is no point to mark.
            return shown;
        }
        if self.recorded.len() == REMEMBERED {
            self.recorded.pop_front();
        }
        self.recorded.push_back(seq);
        records.push(PlannedRecord { point: shown, place });
        shown
    }
}

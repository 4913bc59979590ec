//! Records: where a stream that shows its points by events has recorded one.
//!
//! A record shows the point of the instruction that it stands behind, and takes no number of its own. A need is met
//! by the earliest record at or after it. Where there is none, one is added: right behind the needed instruction if it
//! is in the list at hand, else at the start of the list's work on that stream, so that nothing new is waited for.

use std::collections::VecDeque;

use streamvm_stream::Point;
use streamvm_stream::mutant::{Mutant, Planted};

/// How many records a stream remembers. An older need is met by a later record: one wait that is longer, never wrong.
const REMEMBERED: usize = 32;

/// Where a planned record stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RecordPlace {
    /// Before the stream's first instruction of this list.
    Start,
    /// Right behind the instruction of this list line.
    Behind(usize),
}

/// A record that the pass adds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PlannedRecord {
    /// The point that it shows; also names the record.
    pub point: Point,
    /// Where it stands.
    pub place: RecordPlace,
}

/// The records of one stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    /// Recorded sequence numbers, ascending.
    recorded: VecDeque<u64>,
    /// The last number before the list at hand.
    before: u64,
    /// (sequence number, list line) of the stream's instructions in the list at hand.
    lines: Vec<(u64, usize)>,
}

impl Records {
    /// Starts a list; `last` is the stream's last number before it.
    pub(super) fn begin(&mut self, last: u64) {
        self.before = last;
        self.lines.clear();
    }

    /// The instruction `seq` of the stream stands in `line` of the list.
    pub(super) fn next_line(&mut self, seq: u64, line: usize) {
        self.lines.push((seq, line));
    }

    /// The last number with a record.
    pub(super) fn last(&self) -> Option<u64> {
        self.recorded.back().copied()
    }

    /// The point of the earliest record at or after `point`, which is added to `records` if there is none.
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
            // Before the stream's first instruction there is nothing to show.
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

//! Records: the events that were recorded on a stream that shows its points by events.
//!
//! A record marks the point of the instruction before it, and takes no number of its own. A need is satisfied by the earliest
//! record at or after it. If there is none, the pass adds a record: right after the needed instruction if that is in the current
//! list, else before the list's first instruction on that stream, so that the record waits for no new work.
//!
//! Such a late record is after all that was submitted since the needed instruction, so the wait may be longer than needed. A stream on which that
//! happened places *early* records for a while: one after its last instruction of each list. A pipeline over a few buffers needs them: the copy that reuses a
//! buffer waits for the kernel that used it, not for those submitted since (docs/adr/soft-sync.md).

use std::collections::VecDeque;

use streamvm_stream::mutant::{Mutant, Planted};
use streamvm_stream::{Point, StreamId};

/// The number of records that a stream remembers. A need older than these uses a later record: one longer wait, never a wrong one.
const REMEMBERED: usize = 32;

/// For how many lists a stream places early records after a wait that was longer than needed, or that an early record has kept short: of more, it would
/// not remember the first.
const EARLY: usize = REMEMBERED;

/// The position of a planned record.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RecordPlace {
    /// Before the stream's first instruction of this list.
    Start,
    /// Right after the instruction of this line of the list.
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
    /// The recorded sequence numbers, ascending, and whether the record was early.
    recorded: VecDeque<(u64, bool)>,
    /// The stream's last number before the current list.
    before: u64,
    /// (sequence number, list line) of the stream's instructions in the current list.
    lines: Vec<(u64, usize)>,
    /// How many early records the stream still places.
    early: usize,
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
        self.recorded.back().map(|(seq, _)| *seq)
    }

    /// The point of the earliest record at or after `point`. If there is none, adds one to `records`.
    pub(super) fn at_or_after(&mut self, point: Point, records: &mut Vec<PlannedRecord>, planted: Planted) -> Point {
        let next = self.recorded.partition_point(|&(seq, _)| seq < point.seq);
        if let Some(&(seq, early)) = self.recorded.get(next) {
            // Records at the ends of lists help needs of earlier lists only, where a record made now would be after the last instruction before this list.
            if point.seq <= self.before && (seq > point.seq || (early && seq < self.before)) {
                self.early = EARLY;
            }
            return Point::new(point.stream, seq);
        }
        let (seq, place) = if point.seq > self.before {
            let found = self.lines.binary_search_by_key(&point.seq, |(seq, _)| *seq);
            let Ok(index) = found else { unreachable!("a number past `before` was given to a line of this list") };
            let index = if planted.is(Mutant::RecordBefore) { index.checked_sub(1) } else { Some(index) };
            (point.seq, index.map_or(RecordPlace::Start, |index| RecordPlace::Behind(self.lines[index].1)))
        } else {
            if self.before > point.seq {
                self.early = EARLY;
            }
            (self.before, RecordPlace::Start)
        };
        let shown = Point::new(point.stream, seq);
        if seq == 0 {
            // Before the stream's first instruction there is no point to mark.
            return shown;
        }
        self.add(PlannedRecord { point: shown, place }, false, records);
        shown
    }

    /// Ends a list: adds an early record to `records`, if `stream` places them, has instructions in the list and no record after the last one.
    pub(super) fn end(&mut self, stream: StreamId, records: &mut Vec<PlannedRecord>) {
        let Some(&(seq, line)) = self.lines.last() else { return };
        if self.early == 0 || self.last().is_some_and(|last| last >= seq) {
            return;
        }
        self.early -= 1;
        self.add(PlannedRecord { point: Point::new(stream, seq), place: RecordPlace::Behind(line) }, true, records);
    }

    fn add(&mut self, record: PlannedRecord, early: bool, records: &mut Vec<PlannedRecord>) {
        if self.recorded.len() == REMEMBERED {
            self.recorded.pop_front();
        }
        self.recorded.push_back((record.point.seq, early));
        records.push(record);
    }
}

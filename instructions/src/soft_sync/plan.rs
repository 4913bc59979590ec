//! The plan: the decisions of the pass for a list.

use std::ops::Range;

use streamvm_stream::{Point, Shows, WaitKind};

use crate::soft_sync::record::PlannedRecord;

/// One wait of an instruction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The awaited point: the needed point, or the record at or after it.
    pub point: Point,
    /// The side that waits: the device or thread context, or the scheduler.
    pub kind: WaitKind,
    /// How the source shows the point.
    pub shows: Shows,
}

/// The decisions of the pass for one instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// The instruction's stream and number.
    pub point: Point,
    pub(super) waits: Range<u32>,
    pub(super) reads: Range<u32>,
}

/// The decisions of the pass for one list. The plan is reused from list to list, so it allocates nothing in steady state.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) instructions: Vec<Planned>,
    pub(super) waits: Vec<Wait>,
    pub(super) reads: Vec<Point>,
    pub(super) records: Vec<PlannedRecord>,
}

impl Plan {
    /// One entry per instruction, in list order.
    pub fn instructions(&self) -> &[Planned] {
        &self.instructions
    }

    /// The waits of an instruction of this plan.
    pub fn waits(&self, planned: &Planned) -> &[Wait] {
        self.waits_in(&planned.waits)
    }

    /// The waits of a range that [`SoftSync::order`](super::pass::SoftSync::order) returned.
    #[inline]
    pub fn waits_in(&self, range: &Range<u32>) -> &[Wait] {
        &self.waits[range.start as usize..range.end as usize]
    }

    /// The points that wrote what an instruction of this plan reads: it checks these for poison.
    pub fn reads(&self, planned: &Planned) -> &[Point] {
        &self.reads[planned.reads.start as usize..planned.reads.end as usize]
    }

    /// The records to place among the instructions.
    pub fn records(&self) -> &[PlannedRecord] {
        &self.records
    }

    pub(super) fn clear(&mut self) {
        self.instructions.clear();
        self.waits.clear();
        self.reads.clear();
        self.records.clear();
    }
}

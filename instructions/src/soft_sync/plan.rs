//! The plan: what the pass decides for a list.

use std::ops::Range;

use streamvm_stream::{Point, Shows, WaitKind};

use super::PlannedRecord;

/// One wait of an instruction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// What is waited for: the needed point, or the record at or after it.
    pub point: Point,
    /// Who waits.
    pub kind: WaitKind,
    /// How the source shows the point.
    pub shows: Shows,
}

/// What the pass decided for one instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Its number.
    pub point: Point,
    pub(super) waits: Range<u32>,
    pub(super) reads: Range<u32>,
}

/// What the pass decided for one list. Reused from list to list: it allocates nothing in steady state.
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

    /// The waits that [`SoftSync::order`](super::SoftSync::order) gave.
    #[inline]
    pub fn waits_in(&self, range: &Range<u32>) -> &[Wait] {
        &self.waits[range.start as usize..range.end as usize]
    }

    /// The points that wrote what an instruction of this plan reads: where it must look for poison.
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

//! Block records: one per block, linked by index, reused.
//!
//! Every byte of a region belongs to exactly one block. The records of a region are linked in address order (`previous` / `next`),
//! so that splitting and merging take constant time. A free block is also in the list of its size (`previous_free` / `next_free`),
//! and vacant records are in one list through `next_free`.

use std::ops::{Index, IndexMut};

use super::{AccessSet, AllocatorError, BlockId, RegionId};

/// The value of a link that names no record.
pub(super) const NONE: u32 = u32::MAX;

/// The state of a record. Transitions: Vacant -> Free (region added, split) -> Used (allocated) -> Free (freed); Free -> Vacant
/// (merged into a neighbour, region returned); Used -> Vacant (freed into a neighbour).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The record has no block.
    Vacant,
    /// A free block, in the list of its size.
    Free,
    /// A block in use.
    Used,
}

/// The record of one block. Sizes and offsets count granules.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) state: State,
    /// Incremented each time the record's block is allocated.
    pub(super) generation: u32,
    pub(super) region: RegionId,
    /// The neighbour below in the region.
    pub(super) previous: u32,
    /// The neighbour above in the region.
    pub(super) next: u32,
    pub(super) previous_free: u32,
    pub(super) next_free: u32,
    pub(super) offset: usize,
    pub(super) granules: usize,
    /// The accesses that a free block waits for; empty while the block is used, as its owner holds the accesses then.
    pub(super) accesses: AccessSet,
}

/// All records.
#[derive(Debug)]
pub(super) struct Records {
    records: Vec<Record>,
    vacant: u32,
}

impl Records {
    pub(super) fn new() -> Records {
        Records { records: Vec::new(), vacant: NONE }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Every index, those of vacant records included.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        // `take` never makes more records than an index can name.
        0..self.records.len() as u32
    }

    /// Takes a record to fill in: a vacant one, or else a new one. Its state is still Vacant, its links are stale, and it has no
    /// accesses.
    pub(super) fn take(&mut self) -> Result<u32, AllocatorError> {
        if self.vacant != NONE {
            let index = self.vacant;
            self.vacant = self[index].next_free;
            return Ok(index);
        }
        let blocks = self.records.len();
        let index = u32::try_from(blocks).ok().filter(|&index| index != NONE);
        let index = index.ok_or(AllocatorError::TooManyBlocks { blocks })?;
        self.records.push(Record {
            state: State::Vacant,
            generation: 0,
            region: RegionId(0),
            previous: NONE,
            next: NONE,
            previous_free: NONE,
            next_free: NONE,
            offset: 0,
            granules: 0,
            accesses: AccessSet::new(),
        });
        Ok(index)
    }

    /// Makes a record vacant, for reuse. No record may link to it.
    pub(super) fn vacate(&mut self, index: u32) {
        let vacant = self.vacant;
        let record = &mut self[index];
        record.state = State::Vacant;
        record.accesses.clear();
        record.next_free = vacant;
        self.vacant = index;
    }

    /// The record of a block in use.
    pub(super) fn used(&self, id: BlockId) -> Result<u32, AllocatorError> {
        match self.records.get(id.index as usize) {
            None => Err(AllocatorError::UnknownBlock { id, known: self.records.len() }),
            Some(record) if record.state == State::Used && record.generation == id.generation => Ok(id.index),
            Some(_) => Err(AllocatorError::NotInUse { id }),
        }
    }

    /// Two different records.
    pub(super) fn pair(&mut self, one: u32, other: u32) -> (&mut Record, &mut Record) {
        let [one, other] = self
            .records
            .get_disjoint_mut([one as usize, other as usize])
            .unwrap_or_else(|_| unreachable!("links name existing records, and no block is its own neighbour"));
        (one, other)
    }

    /// Whether the record at this link is of a free block.
    pub(super) fn is_free(&self, index: u32) -> bool {
        index != NONE && self[index].state == State::Free
    }
}

impl Index<u32> for Records {
    type Output = Record;

    fn index(&self, index: u32) -> &Record {
        &self.records[index as usize]
    }
}

impl IndexMut<u32> for Records {
    fn index_mut(&mut self, index: u32) -> &mut Record {
        &mut self.records[index as usize]
    }
}

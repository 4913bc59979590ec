//! The two operations of an undo log: undoing an allocation, and undoing a free.
//!
//! A submission that runs out of memory undoes its operations, newest first, before it releases the lock. Afterwards the same bytes
//! are free and in use as before, and every free byte waits for at least the accesses that it waited for before.

use super::records::NONE;
use super::{AccessSet, Allocator, AllocatorError, Block, BlockId};

impl Allocator {
    /// Undoes an allocation whose block was not accessed. `accesses` must be the set that the block was handed out with.
    ///
    /// The block merges with the block that it was split from, so the cache is as before, and the next request of this size finds
    /// the block first. Neighbours with different accesses that were merged for it stay merged, and wait for the union.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    pub fn undo_alloc(&mut self, block: BlockId, accesses: AccessSet) -> Result<(), AllocatorError> {
        self.free(block, accesses)
    }

    /// Undoes a free: exactly these bytes are in use again, under a new id. The caller is again responsible for the accesses that
    /// it gave to the free. Older entries of the undo log that name the block must use the new id from then on. Linear in the
    /// number of blocks of the region.
    ///
    /// Allocations that were made since the free must be undone first. If the block had been merged, its neighbours keep the union
    /// of the accesses.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotFree`] unless all of its bytes are free now; [`AllocatorError::TooManyBlocks`].
    pub fn undo_free(&mut self, block: Block) -> Result<Block, AllocatorError> {
        let not_free = AllocatorError::NotFree { region: block.region, offset: block.offset, bytes: block.bytes };
        let (start, granules) = (block.offset >> self.shift, block.bytes >> self.shift);
        let end = start.checked_add(granules).filter(|_| granules != 0).ok_or(not_free)?;
        let upper_end = |allocator: &Allocator, index: u32| {
            let record = &allocator.records[index];
            record.offset + record.granules
        };

        let mut lowest = self.regions.first(block.region).ok_or(not_free)?;
        while lowest != NONE && upper_end(self, lowest) <= start {
            lowest = self.records[lowest].next;
        }
        let mut highest = lowest;
        loop {
            if !self.records.is_free(highest) {
                return Err(not_free);
            }
            if upper_end(self, highest) >= end {
                break;
            }
            highest = self.records[highest].next;
        }

        self.merge_up_to(lowest, highest);
        let mut index = lowest;
        let below = start - self.records[index].offset;
        if below != 0 {
            index = self.split_free(index, below)?;
        }
        if self.records[index].granules != granules {
            self.split_free(index, granules)?;
        }
        self.lists.remove(&mut self.records, index);
        self.records[index].accesses = AccessSet::new();
        Ok(self.mark_used(index))
    }

    /// Splits a free block; both parts are in their lists afterwards. Returns the upper part.
    fn split_free(&mut self, index: u32, granules: usize) -> Result<u32, AllocatorError> {
        self.lists.remove(&mut self.records, index);
        let rest = self.split(index, granules);
        self.lists.push(&mut self.records, index);
        if let Ok(rest) = rest {
            self.lists.push(&mut self.records, rest);
            // Both parts are free: if the second split fails, a search for runs must find them.
            self.unmerged = true;
        }
        rest
    }
}

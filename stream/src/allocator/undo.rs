//! The two steps of an undo log: taking back an allocation, and taking back a free.
//!
//! A submission that runs out of memory takes back what it did, newest step first, before the lock is let go. After
//! that the same bytes are free and in use as before, and every free byte waits for at least what it waited for.

use super::records::NONE;
use super::{AccessSet, Allocator, AllocatorError, Block, BlockId};

impl Allocator {
    /// Takes back an allocation whose block nothing has touched: `accesses` must be the set it was handed out with.
    ///
    /// The block merges with what it was split from, so the cache is as before; the next request of this size finds
    /// the block first. Where neighbours with different accesses had been merged for it, they stay merged and wait
    /// for the union.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    pub fn undo_alloc(&mut self, block: BlockId, accesses: AccessSet) -> Result<(), AllocatorError> {
        self.free(block, accesses)
    }

    /// Takes back a free: exactly these bytes are in use again, under a new id. The accesses that went with the free
    /// are the caller's again. Older entries of the undo log that name the block go by the new id from then on.
    /// Linear in the number of blocks of the region.
    ///
    /// Allocations made since the free are undone first. Where the block had been merged, its neighbours keep the
    /// union of the accesses.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotFree`] unless all of its bytes are free now, [`AllocatorError::TooManyBlocks`].
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
        Ok(self.start_life(index))
    }

    /// Splits a free block; both parts are in their lists. Returns the upper part.
    fn split_free(&mut self, index: u32, granules: usize) -> Result<u32, AllocatorError> {
        self.lists.remove(&mut self.records, index);
        let rest = self.split(index, granules);
        self.lists.push(&mut self.records, index);
        if let Ok(rest) = rest {
            self.lists.push(&mut self.records, rest);
            // Both are free: should the second step fail, a search for runs must find them.
            self.unmerged = true;
        }
        rest
    }
}

//! The blocks that the allocator hands out: byte ranges named by (region, offset, bytes), never pointers.

use std::fmt;

use super::AccessSet;

/// The allocator's number of one region, which is one memory request to the driver. Numbers are dense, and are reused after
/// [`Allocator::shrink`](super::Allocator::shrink) has returned the region.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub(super) u32);

impl RegionId {
    /// The number as an index into the caller's table of driver regions.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id of one allocation of a block. Block records are reused; the generation tells the allocations of one record apart, so that
/// a second free is refused. It wraps after 2^32 allocations of one record.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct BlockId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}.{}", self.index, self.generation)
    }
}

/// A range of bytes in use. It stays in use until its id is freed: dropping this value frees nothing.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    /// The id to free it by.
    pub id: BlockId,
    /// The region that holds it.
    pub region: RegionId,
    /// Bytes from the region's start; a multiple of the alignment.
    pub offset: usize,
    /// The usable size in bytes: a multiple of the alignment, at least the requested size.
    pub bytes: usize,
}

/// A block, and the accesses that its first access must be ordered after.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the block stays in use until it is freed"]
pub struct Allocated {
    /// The block.
    pub block: Block,
    /// Accesses of former allocations that had not passed when the block was handed out. The owner of the block keeps them until an
    /// access of its own has been ordered after them. Empty for [`Want::Passed`](super::Want::Passed).
    pub accesses: AccessSet,
}

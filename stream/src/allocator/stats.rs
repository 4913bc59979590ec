//! Counters of the allocator.

/// What the allocator holds and has done. Sizes are bytes; `reserved == in_use + cached` always.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct AllocatorStats {
    /// Bytes of all regions.
    pub reserved: usize,
    /// Bytes of blocks in use, rounding included.
    pub in_use: usize,
    /// Bytes of free blocks, and of those that were set aside.
    pub cached: usize,
    /// The highest `in_use` so far, allocations that were undone later included.
    pub peak_in_use: usize,
    /// Blocks in use, without those that were set aside.
    pub blocks: usize,
    /// Free blocks.
    pub free_blocks: usize,
    /// Regions.
    pub regions: usize,
    /// Block records that exist, used or not: constant in steady state, since records are reused.
    pub records: usize,
    /// Allocations that were served, those undone and those from what was set aside included.
    pub hits: u64,
    /// Calls of [`alloc`](super::Allocator::alloc) that found no block: each rung of the out-of-memory ladder counts.
    pub misses: u64,
    /// Times a block was split in two.
    pub splits: u64,
    /// Times two neighbours were merged.
    pub coalesced: u64,
}

//! Counters of the allocator.

/// The state and the counters of an allocator. Sizes are in bytes; `reserved == in_use + cached` always.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct AllocatorStats {
    /// Bytes of all regions.
    pub reserved: usize,
    /// Bytes of blocks in use, including rounding.
    pub in_use: usize,
    /// Bytes of free blocks, and of blocks that were set aside.
    pub cached: usize,
    /// The highest `in_use` so far, including allocations that were undone later.
    pub peak_in_use: usize,
    /// The number of blocks in use, without those that were set aside.
    pub blocks: usize,
    /// Free blocks.
    pub free_blocks: usize,
    /// Regions.
    pub regions: usize,
    /// The number of block records, used or vacant: constant in steady state, as records are reused.
    pub records: usize,
    /// Allocations that were served, including those that were undone, and those of blocks that were set aside.
    pub hits: u64,
    /// Calls of [`alloc`](super::Allocator::alloc) that found no block: each step of OOM recovery counts.
    pub misses: u64,
    /// Times a block was split in two.
    pub splits: u64,
    /// Times two neighbours were merged.
    pub coalesced: u64,
}

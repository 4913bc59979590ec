//! The caching allocator: reuses memory across streams, and only computes; it calls no driver.
//!
//! Layer: uses `point` and `mutant`; is used by no other folder. Engines use it through the root of this crate.
//!
//! **Freeing waits for nothing; reuse is a write.** A freed block is available at once, together with the points of its accesses
//! that may still be pending. The next owner of these bytes orders its first access after those points. So freeing never blocks,
//! and no stream overwrites memory that another stream still uses.
//!
//! One [`Allocator`] manages one kind of memory of one device, for all streams. It handles (region, offset, bytes), never pointers.
//! When [`Allocator::alloc`] finds no block, the caller releases the lock that guards the allocator, asks the driver for
//! [`Allocator::region_request`] bytes, and registers them with [`Allocator::add_region`].
//!
//! # How blocks are found, split and merged
//!
//! Free blocks are in two-level segregated lists (TLSF; the source is named in `classes`), which take constant time, whatever the
//! number of blocks. Two rules differ from the paper, because a block here also has accesses:
//!
//! * *Which block.* The search checks a bounded number of candidates in the fitting classes ([`CANDIDATES_PER_CLASS`],
//!   [`CANDIDATES`]), and takes one that needs no wait if it finds one. It starts in the request's own class, so a freed block is
//!   the first candidate of the next request of its size.
//! * *When to merge.* A merged block waits for the union of both access sets. Neighbours whose sets name the same streams are
//!   merged when the second is freed. Others stay apart, and are merged when a request would fail otherwise; a run that needs no
//!   wait is preferred. This loses nothing to fragmentation: `alloc` with [`Want::Any`] returns `None` only when no run of free
//!   neighbours is large enough.
//!
//! # Invariants
//!
//! * Every byte of a region is in exactly one block; blocks of a region are linked in address order.
//! * A free block's set holds, for each of its bytes, every access that has not passed. Splitting copies the set to both parts.
//!   Merging takes the union: the highest point of each ordered stream, every point of an unordered one.
//! * A point leaves a set only when the caller's `passed` returns true for it. `passed` must never return false for that point
//!   later, and where runs are traced it must answer from the snapshot that the submission writes to the trace.
//! * A call that returns an error has changed nothing observable except counters.
//! * In steady state nothing is allocated on the heap: block records are reused, and sets of up to two points are inline.
//!
//! The allocator has no lock: its owner guards it with the submission lock.

mod access_set;
mod block;
mod check;
mod classes;
mod config;
mod error;
mod records;
mod regions;
mod search;
mod stats;

pub use access_set::AccessSet;
pub use block::{Allocated, Block, BlockId, RegionId};
pub use config::AllocatorConfig;
pub use error::AllocatorError;
pub use search::{CANDIDATES, CANDIDATES_PER_CLASS, Want};
pub use stats::AllocatorStats;

use classes::{FreeLists, SECOND};
use records::{NONE, Records, State};
use regions::Regions;

use crate::Point;
use crate::mutant::{Mutant, Planted};

/// The caching allocator of one kind of memory of one device. The [module](self) has the rules and an overview.
///
/// ```
/// use streamvm_stream::allocator::{AccessSet, Allocator, AllocatorConfig, Want};
/// use streamvm_stream::{Point, StreamId};
///
/// let (compute, copy) = (StreamId(0), StreamId(1));
/// let nothing_passed = |_: Point| false;
/// let mut allocator = Allocator::new(AllocatorConfig { limit: Some(4096), ..Default::default() })?;
/// assert!(allocator.alloc(4000, Want::Any { stream: compute }, &nothing_passed).is_none());
///
/// let bytes = allocator.region_request(4000)?; // the caller asks its driver for so much
/// allocator.add_region(bytes)?;
/// let first = allocator.alloc(4000, Want::Any { stream: compute }, &nothing_passed).expect("a fresh region fits");
/// assert!(first.accesses.is_empty());
///
/// // Freed while the compute stream may still use it: another stream gets the block, and has to wait.
/// let used = Point::new(compute, 7);
/// allocator.free(first.block.id, AccessSet::from_iter([used]))?;
/// assert!(allocator.alloc(4000, Want::NoWait { stream: copy }, &nothing_passed).is_none());
/// let second = allocator.alloc(4000, Want::Any { stream: copy }, &nothing_passed).expect("the freed block");
/// assert_eq!(second.accesses.iter().collect::<Vec<_>>(), [used]);
/// # Ok::<(), streamvm_stream::allocator::AllocatorError>(())
/// ```
#[derive(Debug)]
pub struct Allocator {
    config: AllocatorConfig,
    /// Log2 of the alignment: bytes to granules.
    shift: u32,
    records: Records,
    lists: FreeLists,
    regions: Regions,
    /// Whether two neighbours may both be free. While false, a search for runs is skipped.
    unmerged: bool,
    /// The stored counters, in which blocks that are set aside count as in use; `stats()` computes the others.
    counters: AllocatorStats,
    aside_bytes: usize,
    aside_blocks: usize,
    planted: Planted,
}

impl Allocator {
    /// An allocator without memory.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::BadAlignment`] unless the alignment is a power of two.
    pub fn new(config: AllocatorConfig) -> Result<Allocator, AllocatorError> {
        Ok(Allocator {
            config,
            shift: config.shift()?,
            records: Records::new(),
            lists: FreeLists::new(),
            regions: Regions::new(),
            unmerged: false,
            counters: AllocatorStats::default(),
            aside_bytes: 0,
            aside_blocks: 0,
            planted: Planted::default(),
        })
    }

    /// Plants a mutant: the allocator then breaks its rule on purpose.
    #[doc(hidden)]
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Takes a block of at least `bytes` from the cache. Never asks a driver.
    ///
    /// The block starts at a multiple of the alignment. It may be larger than requested by the rounding, and by up to 1/32 where
    /// the rest would be too small to be useful. Its accesses are those that have not passed. A point of the requesting stream may
    /// be among them even if it has passed, as `passed` is not called for points that need no wait.
    ///
    /// `None` means that there is no block for this [`Want`]: the caller tries the next step of OOM recovery, or adds a region. A
    /// size that cannot be rounded (zero, or more than can be addressed) always gets `None`; then
    /// [`region_request`](Self::region_request) returns the reason.
    pub fn alloc(&mut self, bytes: usize, want: Want, passed: &dyn Fn(Point) -> bool) -> Option<Allocated> {
        let found = self.granules(bytes).ok().and_then(|granules| Some((self.find(granules, want, passed)?, granules)));
        let Some((index, granules)) = found else {
            self.counters.misses += 1;
            return None;
        };
        self.counters.hits += 1;
        self.lists.remove(&mut self.records, index);
        // The width of one class: a block of the request's own class is never split.
        if self.records[index].granules - granules > granules / SECOND {
            // If there is no record for the rest, the block is handed out whole.
            if let Ok(rest) = self.split(index, granules) {
                self.lists.push(&mut self.records, rest);
            }
        }
        let mut accesses = std::mem::take(&mut self.records[index].accesses);
        if self.planted.is(Mutant::ReuseWithoutSync) {
            accesses.clear();
        }
        let block = self.mark_used(index);
        self.note_peak();
        Some(Allocated { block, accesses })
    }

    /// Frees a block; waits for nothing.
    ///
    /// `accesses` must contain every access of this allocation. It must also contain the set that the block was handed out with,
    /// unless an access of this allocation was ordered after that set. Points that have passed may be left out.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotInUse`] for a second free; [`AllocatorError::UnknownBlock`] for an id that was never handed out. Then
    /// nothing changes.
    pub fn free(&mut self, block: BlockId, accesses: AccessSet) -> Result<(), AllocatorError> {
        let index = self.records.used(block)?;
        self.mark_free(index, accesses);
        Ok(())
    }

    /// Undoes an allocation whose block was not accessed, for a submission that runs out of memory later. `accesses` must be the set
    /// that the block was handed out with. Several allocations are undone newest first.
    ///
    /// The block merges with the block that it was split from, so the cache is as before, and the next request of this size finds
    /// the block first. Neighbours with different accesses that were merged for it stay merged, and wait for the union: every free
    /// byte waits for at least the accesses that it waited for before.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    pub fn undo_alloc(&mut self, block: BlockId, accesses: AccessSet) -> Result<(), AllocatorError> {
        self.free(block, accesses)
    }

    /// Notes that the owner of a block in use, of so many bytes, keeps it in a block cache for a later allocation of its own. It
    /// counts as cached until [`Allocator::take_up`] or [`Allocator::bring_back`]. Other requests cannot get the block, so the
    /// owner must bring it back and free it once a request fails.
    #[inline]
    pub fn set_aside(&mut self, bytes: usize) {
        self.aside_bytes += bytes;
        self.aside_blocks += 1;
    }

    /// Notes that the owner reuses a block that was set aside: it counts as an allocation that was served.
    #[inline]
    pub fn take_up(&mut self, bytes: usize) {
        self.bring_back(bytes);
        self.counters.hits += 1;
        self.note_peak();
    }

    /// Notes that a block that was set aside counts as in use again, so that it can be freed.
    #[inline]
    pub fn bring_back(&mut self, bytes: usize) {
        self.aside_bytes -= bytes;
        self.aside_blocks -= 1;
    }

    /// Bytes of blocks that are in use and not set aside.
    fn in_use(&self) -> usize {
        self.counters.in_use - self.aside_bytes
    }

    fn note_peak(&mut self) {
        self.counters.peak_in_use = self.counters.peak_in_use.max(self.in_use());
    }

    /// Returns the counters and sizes.
    pub fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            in_use: self.in_use(),
            blocks: self.counters.blocks - self.aside_blocks,
            cached: self.counters.reserved - self.in_use(),
            free_blocks: self.lists.len(),
            records: self.records.len(),
            ..self.counters
        }
    }

    /// The pending points of cached memory: the caller waits for them before it retries a failed allocation.
    pub fn points_pending(&self, passed: &dyn Fn(Point) -> bool) -> AccessSet {
        let mut all = AccessSet::new();
        for (_, _, _, accesses) in self.cached_blocks() {
            all.merge(accesses);
        }
        all.prune(passed);
        all
    }

    /// Every free block as (region, offset in bytes, size in bytes, accesses), in no particular order.
    pub fn cached_blocks(&self) -> impl Iterator<Item = (RegionId, usize, usize, &AccessSet)> {
        self.records
            .indices()
            .map(|index| &self.records[index])
            .filter(|record| record.state == State::Free)
            .map(|record| (record.region, record.offset << self.shift, record.granules << self.shift, &record.accesses))
    }

    /// `bytes` in granules, rounded up.
    fn granules(&self, bytes: usize) -> Result<usize, AllocatorError> {
        let largest = isize::MAX as usize & !(self.config.alignment - 1);
        if bytes == 0 || bytes > largest {
            return Err(AllocatorError::BadSize { bytes, largest });
        }
        Ok((bytes + (self.config.alignment - 1)) >> self.shift)
    }

    /// Splits a block that is in no list after its first `granules`. The rest becomes a free block in no list, with the same
    /// accesses.
    fn split(&mut self, index: u32, granules: usize) -> Result<u32, AllocatorError> {
        let rest = self.records.take()?;
        self.counters.splits += 1;
        let (front, record) = self.records.pair(index, rest);
        let next = front.next;
        record.state = State::Free;
        record.region = front.region;
        record.previous = index;
        record.next = next;
        record.offset = front.offset + granules;
        record.granules = front.granules - granules;
        record.accesses.merge(&front.accesses);
        front.granules = granules;
        front.next = rest;
        if next != NONE {
            self.records[next].previous = rest;
        }
        Ok(rest)
    }

    /// Merges a block with its neighbour above; both are in no list. The lower record is kept, so a region's first record never
    /// changes.
    fn absorb(&mut self, lower: u32, upper: u32) {
        self.counters.coalesced += 1;
        let (low, up) = self.records.pair(lower, upper);
        low.granules += up.granules;
        low.next = up.next;
        low.accesses.merge(&up.accesses);
        let next = up.next;
        self.records.vacate(upper);
        if next != NONE {
            self.records[next].previous = lower;
        }
    }

    /// Free -> Used. The record is in no list.
    fn mark_used(&mut self, index: u32) -> Block {
        let record = &mut self.records[index];
        record.state = State::Used;
        record.generation = record.generation.wrapping_add(1);
        let block = Block {
            id: BlockId { index, generation: record.generation },
            region: record.region,
            offset: record.offset << self.shift,
            bytes: record.granules << self.shift,
        };
        self.counters.in_use += block.bytes;
        self.counters.blocks += 1;
        block
    }

    /// Used -> Free: merges the block with free neighbours that wait for the same streams, and adds it to its list.
    fn mark_free(&mut self, mut index: u32, accesses: AccessSet) {
        let record = &mut self.records[index];
        record.state = State::Free;
        record.accesses = accesses;
        if self.planted.is(Mutant::ReturnedEarly) {
            record.accesses.clear();
        }
        self.counters.in_use -= record.granules << self.shift;
        self.counters.blocks -= 1;
        let (previous, next) = (record.previous, record.next);
        if self.merges(index, next) {
            self.lists.remove(&mut self.records, next);
            self.absorb(index, next);
        }
        if self.merges(index, previous) {
            self.lists.remove(&mut self.records, previous);
            self.absorb(previous, index);
            index = previous;
        }
        self.lists.push(&mut self.records, index);
    }

    /// Whether this neighbour of a freed block can be merged with it at once. Notes a free neighbour that cannot.
    fn merges(&mut self, freed: u32, neighbour: u32) -> bool {
        if !self.records.is_free(neighbour) {
            return false;
        }
        let same = self.records[freed].accesses.same_streams(&self.records[neighbour].accesses);
        self.unmerged |= !same;
        same
    }
}

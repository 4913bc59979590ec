//! The block cache: blocks of dropped tensors, kept whole for the next tensor of the same size on the same stream.
//!
//! A program that repeatedly makes a tensor and drops the one before gets the same few blocks again and again. Without the cache, each time
//! the allocator would free and find the block, and soft sync would remove and add a dependence. The cache keeps resource, block and
//! dependence, if one ordered stream holds all accesses that the memory must wait for. Only the contents state is reset. The dependence
//! starts anew after the last access, so the next owner is ordered as after an allocator's block.
//!
//! Invariants:
//! * The cache holds at most [`CAPACITY`] blocks; a new one evicts the oldest. A look-up takes the newest that fits.
//! * Cached blocks return to the allocators when an allocation fails, before memory statistics are read, and at the end of the engine.
//! * Only the holder of the submission lock touches the cache.

use streamvm_instructions::{Dependence, Observed, ResourceId};
use streamvm_stream::StreamId;

use crate::execute::environment::Environment;
use crate::submit::state::State;
use crate::tasks::memory::PoolId;
use crate::tasks::resource::Contents;

/// Number of cached blocks.
const CAPACITY: usize = 8;

/// The largest cached block in bytes. Work on larger tensors takes so long that the cost of the allocator does not matter.
const LARGEST: usize = 1 << 20;

/// One cached block, with its resource and dependence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct CachedBlock {
    pool: PoolId,
    /// The bytes that its last owner asked for.
    bytes: usize,
    /// The stream of all accesses of its last owner.
    stream: StreamId,
    resource: ResourceId,
}

/// The cached blocks: a ring.
#[derive(Default)]
pub(crate) struct BlockCache {
    blocks: [Option<CachedBlock>; CAPACITY],
    /// The slot of the next block.
    next: usize,
}

impl BlockCache {
    /// Adds the newest block. Returns the block that it evicted.
    #[inline]
    fn put(&mut self, cached: CachedBlock) -> Option<CachedBlock> {
        let before = self.blocks[self.next % CAPACITY].replace(cached);
        self.next = (self.next + 1) % CAPACITY;
        before
    }

    /// Takes the newest block of this pool, size and stream, if `fits`.
    #[inline]
    fn take(
        &mut self,
        pool: PoolId,
        bytes: usize,
        stream: StreamId,
        fits: impl FnOnce(ResourceId) -> bool,
    ) -> Option<ResourceId> {
        for back in 1..=CAPACITY {
            let place = (self.next + CAPACITY - back) % CAPACITY;
            let Some(cached) = self.blocks[place] else { continue };
            if cached.bytes == bytes && cached.pool == pool && cached.stream == stream {
                if !fits(cached.resource) {
                    return None;
                }
                self.blocks[place] = None;
                // A block that is taken right after it was added frees its slot for the next.
                if back == 1 {
                    self.next = place;
                }
                return Some(cached.resource);
            }
        }
        None
    }
}

impl State {
    /// Caches the block of a resource whose handles are gone, if it qualifies. Returns whether it did; if not, the caller must free the
    /// resource.
    #[inline]
    pub(crate) fn cache_block(&mut self, id: ResourceId) -> bool {
        let Some(known) = self.resources.get(id.index()).and_then(Option::as_ref) else { return false };
        let (Some((pool, block)), bytes) = (known.memory.block, known.memory.bytes()) else { return false };
        if bytes > LARGEST {
            return false;
        }
        let Some(stream) = self.sync.renew_dependence(id) else { return false };
        self.pools.get(pool).allocator.set_aside(block.bytes);
        if let Some(before) = self.block_cache.put(CachedBlock { pool, bytes, stream, resource: id }) {
            self.evict(before);
        }
        true
    }

    /// Takes a cached block of this pool, size and stream for a new owner, whose first access is on that stream. Its contents count as never written.
    #[inline]
    pub(crate) fn take_cached(&mut self, pool: PoolId, bytes: usize, stream: StreamId) -> Option<ResourceId> {
        let id = self.block_cache.take(pool, bytes, stream, |_| true)?;
        self.renew_contents(id)
    }

    /// Takes a cached block whose accesses, all on `stream`, have passed: for an owner whose first access may be on any stream.
    #[inline]
    pub(crate) fn take_cached_passed(
        &mut self,
        pool: PoolId,
        bytes: usize,
        stream: StreamId,
        env: &Environment,
    ) -> Option<ResourceId> {
        let State { block_cache, sync, snapshot, .. } = self;
        let mut observed = snapshot.of(env);
        let id = block_cache.take(pool, bytes, stream, |id| {
            sync.dependence(id).accesses().iter().all(|access| observed.has_passed(access))
        })?;
        self.sync.replace_dependence(id, Dependence::default());
        self.renew_contents(id)
    }

    #[inline]
    fn renew_contents(&mut self, id: ResourceId) -> Option<ResourceId> {
        let known = self.resources.get_mut(id.index()).and_then(Option::as_mut)?;
        known.contents = Contents::Fresh;
        if let Some((pool, block)) = known.memory.block {
            self.pools.get(pool).allocator.take_up(block.bytes);
        }
        Some(id)
    }

    /// Returns all cached blocks to the allocators. Returns whether there were any.
    pub(crate) fn clear_block_cache(&mut self) -> bool {
        let block_cache = std::mem::take(&mut self.block_cache);
        let blocks = block_cache.blocks.into_iter().flatten();
        blocks.map(|cached| self.evict(cached)).count() > 0
    }

    #[inline(never)]
    fn evict(&mut self, cached: CachedBlock) {
        let block = self.resources.get(cached.resource.index()).and_then(Option::as_ref).and_then(|it| it.memory.block);
        if let Some((pool, block)) = block {
            self.pools.get(pool).allocator.bring_back(block.bytes);
        }
        self.free(cached.resource);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn of(bytes: usize, resource: u32) -> CachedBlock {
        CachedBlock { pool: PoolId::first(), bytes, stream: StreamId(0), resource: ResourceId(resource) }
    }

    #[test]
    fn the_newest_that_fits_is_taken_and_the_oldest_goes() {
        let mut block_cache = BlockCache::default();
        let (pool, stream) = (PoolId::first(), StreamId(0));
        let put: Vec<Option<CachedBlock>> = (0..10).map(|id| block_cache.put(of(64 + id as usize % 2, id))).collect();
        assert_eq!(put[..8], [None; 8]);
        assert_eq!(put[8..], [Some(of(64, 0)), Some(of(65, 1))]);
        let mut take = |bytes| block_cache.take(pool, bytes, stream, |_| true).map(|id| id.0);
        assert_eq!([take(64), take(65), take(65), take(66), take(64)], [Some(8), Some(9), Some(7), None, Some(6)]);
        assert_eq!(block_cache.take(pool, 64, StreamId(1), |_| true), None);
        assert_eq!(block_cache.take(pool, 64, stream, |id| id.0 != 4), None, "the newest does not fit");
        // The slot of a block that was taken right after it was added is used next.
        let left = block_cache.blocks.iter().flatten().count();
        assert_eq!((left, block_cache.put(of(64, 20))), (4, None));
        assert_eq!(block_cache.take(pool, 64, stream, |_| true), Some(ResourceId(20)));
    }
}

//! Lives of memory that are over, kept whole for the next of their size on their stream.
//!
//! A program that makes a tensor and drops the one before, over and over, gets the same blocks again and again. Between two
//! lives of such a block the allocator would be asked to free it and to find it, and a dependence would be taken apart and put
//! together. Where one ordered stream has all that the memory must wait for, resource, block and dependence stay what they are
//! instead, but for the contents: the dependence starts anew behind the last access, so whoever gets it is ordered as ever.
//!
//! There are few, and the oldest goes for a new one. They are given back whenever the allocators lack memory, and before
//! anybody looks at them: nobody sees a difference.

use streamvm_instructions::ResourceId;
use streamvm_stream::StreamId;

use crate::memory::PoolId;
use crate::state::{Contents, State};

/// How many are kept.
const KEPT: usize = 8;

/// The largest that is kept, in bytes. What works on more takes so long that finding a block is no cost.
const LARGEST: usize = 1 << 20;

/// One life that is over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Life {
    pool: PoolId,
    /// As its last owner asked for them.
    bytes: usize,
    /// Of its last owner's accesses, all of them.
    stream: StreamId,
    resource: ResourceId,
}

/// The lives that are kept.
#[derive(Default)]
pub(crate) struct Kept {
    lives: [Option<Life>; KEPT],
    /// The place of the next.
    next: usize,
}

impl Kept {
    /// Keeps one, newest first; returns the one whose place it took.
    #[inline]
    fn put(&mut self, life: Life) -> Option<Life> {
        let before = self.lives[self.next % KEPT].replace(life);
        self.next = (self.next + 1) % KEPT;
        before
    }

    /// Takes the newest out that is so large.
    #[inline]
    fn take(&mut self, pool: PoolId, bytes: usize, stream: StreamId) -> Option<ResourceId> {
        for back in 1..=KEPT {
            let place = (self.next + KEPT - back) % KEPT;
            let Some(life) = self.lives[place] else { continue };
            if life.bytes == bytes && life.pool == pool && life.stream == stream {
                self.lives[place] = None;
                // What was put in last, and is taken at once, leaves its place to the next.
                if back == 1 {
                    self.next = place;
                }
                return Some(life.resource);
            }
        }
        None
    }
}

impl State {
    /// Keeps the life of a resource whose handles are gone, if it is one to keep: not to be freed then.
    #[inline]
    pub(crate) fn keep(&mut self, id: ResourceId) -> bool {
        let Some(known) = self.resources.get(id.index()).and_then(Option::as_ref) else { return false };
        let (Some((pool, block)), bytes) = (known.memory.block, known.memory.bytes()) else { return false };
        if bytes > LARGEST {
            return false;
        }
        let Some(stream) = self.sync.renew_dependence(id) else { return false };
        self.pools.get(pool).allocator.set_aside(block.bytes);
        if let Some(before) = self.kept.put(Life { pool, bytes, stream, resource: id }) {
            self.end(before);
        }
        true
    }

    /// A life that was kept, of so many bytes and on that stream, for a new owner: nothing was written yet.
    #[inline]
    pub(crate) fn take_kept(&mut self, pool: PoolId, bytes: usize, stream: StreamId) -> Option<ResourceId> {
        let id = self.kept.take(pool, bytes, stream)?;
        let known = self.resources.get_mut(id.index()).and_then(Option::as_mut)?;
        known.contents = Contents::Fresh;
        if let Some((pool, block)) = known.memory.block {
            self.pools.get(pool).allocator.take_up(block.bytes);
        }
        Some(id)
    }

    /// Gives the memory of all that is kept back to the allocators. Returns whether there was any.
    pub(crate) fn end_kept(&mut self) -> bool {
        let kept = std::mem::take(&mut self.kept);
        let lives = kept.lives.into_iter().flatten();
        lives.map(|life| self.end(life)).count() > 0
    }

    #[inline(never)]
    fn end(&mut self, life: Life) {
        let block = self.resources.get(life.resource.index()).and_then(Option::as_ref).and_then(|it| it.memory.block);
        if let Some((pool, block)) = block {
            self.pools.get(pool).allocator.bring_back(block.bytes);
        }
        self.free(life.resource);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn life(bytes: usize, resource: u32) -> Life {
        Life { pool: PoolId::first(), bytes, stream: StreamId(0), resource: ResourceId(resource) }
    }

    #[test]
    fn the_newest_that_fits_is_taken_and_the_oldest_goes() {
        let mut kept = Kept::default();
        let (pool, stream) = (PoolId::first(), StreamId(0));
        let put: Vec<Option<Life>> = (0..10).map(|id| kept.put(life(64 + id as usize % 2, id))).collect();
        assert_eq!(put[..8], [None; 8]);
        assert_eq!(put[8..], [Some(life(64, 0)), Some(life(65, 1))]);
        let mut take = |bytes| kept.take(pool, bytes, stream).map(|id| id.0);
        assert_eq!([take(64), take(65), take(65), take(66), take(64)], [Some(8), Some(9), Some(7), None, Some(6)]);
        assert_eq!(kept.take(pool, 64, StreamId(1)), None);
        // A place that was left is the next to be taken.
        let left = kept.lives.iter().flatten().count();
        assert_eq!((left, kept.put(life(64, 20))), (4, None));
        assert_eq!(kept.take(pool, 64, stream), Some(ResourceId(20)));
    }
}

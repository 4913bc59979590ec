//! Memory that the current list releases. A later instruction of the list may get it, and is then its *heir*.
//!
//! A list may release and allocate very often, so blocks are found by owner and by size, and not searched.

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};
use streamvm_instructions::ResourceId;
use streamvm_stream::allocator::Block;

use crate::tasks::memory::PoolId;

/// A block that the list releases.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReleasedBlock {
    pub(crate) pool: PoolId,
    pub(crate) block: Block,
    pub(crate) heir: Option<ResourceId>,
}

/// How many blocks a list may release whose tables are kept.
const MOST_KEPT: usize = 64;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct ReleasedBlocks {
    by_owner: HashMap<ResourceId, ReleasedBlock>,
    /// The owners of the blocks without an heir, by pool, size in bytes, and order of release.
    without_heir: BTreeMap<(PoolId, usize, usize), ResourceId>,
    heirs: HashSet<ResourceId>,
    /// How many blocks were released so far.
    released: usize,
}

impl ReleasedBlocks {
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        if self.released > 0 {
            self.forget();
        }
    }

    /// Keeps the memory of small tables, for the next list. Clearing a large one would take as long as it is large, for each list to come.
    #[cold]
    fn forget(&mut self) {
        if self.released > MOST_KEPT {
            *self = ReleasedBlocks::default();
            return;
        }
        self.by_owner.clear();
        self.without_heir.clear();
        self.heirs.clear();
        self.released = 0;
    }

    /// Adds the block of `owner`.
    pub(crate) fn add(&mut self, owner: ResourceId, pool: PoolId, block: Block) {
        self.without_heir.insert((pool, block.bytes, self.released), owner);
        self.by_owner.insert(owner, ReleasedBlock { pool, block, heir: None });
        self.released += 1;
    }

    /// Takes the smallest block of a pool that has no heir and at least `least` and at most `most` bytes; of several, the one released first. The
    /// caller must tell the heir by [`ReleasedBlocks::pass_on`]. Returns it with its owner.
    pub(crate) fn take(&mut self, pool: PoolId, least: usize, most: usize) -> Option<(ResourceId, Block)> {
        let (key, owner) = self.without_heir.range((pool, least, 0)..=(pool, most, usize::MAX)).next()?;
        let (key, owner) = (*key, *owner);
        self.without_heir.remove(&key);
        self.by_owner.get(&owner).map(|released| (owner, released.block))
    }

    /// Makes `heir` the next owner of the block of `owner`.
    pub(crate) fn pass_on(&mut self, owner: ResourceId, heir: ResourceId) {
        if let Some(released) = self.by_owner.get_mut(&owner) {
            released.heir = Some(heir);
            self.heirs.insert(heir);
        }
    }

    /// Whether the resource got its block from an owner in the list.
    pub(crate) fn is_heir(&self, resource: ResourceId) -> bool {
        self.heirs.contains(&resource)
    }

    /// Takes the block of `owner`, whose release is committed.
    pub(crate) fn commit(&mut self, owner: ResourceId) -> Option<ReleasedBlock> {
        self.by_owner.remove(&owner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use streamvm_stream::StreamId;
    use streamvm_stream::allocator::{Allocator, AllocatorConfig, Want};

    use super::*;

    /// Blocks of these sizes in bytes.
    fn blocks<const COUNT: usize>(sizes: [usize; COUNT]) -> [Block; COUNT] {
        let mut allocator = Allocator::new(AllocatorConfig::default()).expect("the alignment is a power of two");
        allocator.add_region(1 << 20).expect("an aligned region");
        let want = Want::NoWait { stream: StreamId(0) };
        sizes.map(|bytes| allocator.alloc(bytes, want, &|_| true).expect("there is room").block)
    }

    #[test]
    fn the_smallest_that_fits_is_taken_once_and_of_several_the_first() {
        let (pool, id) = (PoolId::first(), ResourceId);
        let [small, first, second, large] = blocks([1 << 10, 1 << 12, 1 << 12, 1 << 14]);
        let mut released = ReleasedBlocks::default();
        for (owner, block) in [(4, large), (2, first), (1, small), (3, second)] {
            released.add(id(owner), pool, block);
        }
        assert_eq!(released.take(pool, 1 << 11, 1 << 13), Some((id(2), first)));
        released.pass_on(id(2), id(9));
        assert_eq!(released.take(pool, 1 << 11, 1 << 13), Some((id(3), second)));
        assert_eq!(released.take(pool, 1 << 11, 1 << 13), None);
        assert_eq!(released.take(pool, 1 << 11, usize::MAX), Some((id(4), large)));
        assert!(released.is_heir(id(9)) && !released.is_heir(id(2)));
        assert_eq!(released.commit(id(2)), Some(ReleasedBlock { pool, block: first, heir: Some(id(9)) }));
        assert_eq!(released.commit(id(2)), None);
        released.clear();
        assert!(!released.is_heir(id(9)) && released.take(pool, 0, usize::MAX).is_none());
    }
}

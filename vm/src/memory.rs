//! Memory: regions from devices, and raw views of them for jobs.
//!
//! The allocators in [`Pool`] hand out offsets; here they become addresses. A pool serves one place and memory kind for
//! all streams. [`Heap`] owns the regions and gives them back to their devices, when the allocator says that nothing
//! pending uses them, or when the engine with all its threads is gone.

#![allow(unsafe_code, reason = "fills memory at addresses, and gives regions back")]

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::{Device, MemoryKind, Region};
use streamvm_instructions::Place;
use streamvm_stream::allocator::{Allocator, AllocatorConfig, AllocatorError, Block, BlockId, RegionId};
use streamvm_stream::mutant::Planted;

use crate::sync::{Mutex, unpoisoned};

/// A pool's number.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PoolId(usize);

impl PoolId {
    /// That of the first pool.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn first() -> PoolId {
        PoolId(0)
    }
}

/// The address of some memory of a region.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Base(pub(crate) *mut u8);

// SAFETY: an address may be known anywhere; what is done at it is ordered by whoever makes an operand of it.
unsafe impl Send for Base {}

/// The memory behind one resource.
#[derive(Debug)]
pub(crate) struct Memory {
    base: Base,
    bytes: usize,
    pub(crate) block: Option<(PoolId, Block)>,
}

impl Memory {
    /// No bytes: a variable, or a tensor of size zero.
    pub(crate) fn none() -> Memory {
        // Aligned for every dtype, and never read: nothing of it is in bounds.
        Memory { base: Base(std::ptr::without_provenance_mut(256)), bytes: 0, block: None }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where it starts: allocated and initialised bytes, as devices zero their regions.
    #[inline]
    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// A view is made within its storage, and the memory has the storage's size.
    ///
    /// # Panics
    /// If a view would reach so many bytes from the start, and there are less.
    #[inline]
    pub(crate) fn check_reach(&self, bytes: usize) {
        assert!(bytes <= self.bytes, "a view of {} bytes of memory reaches past them", self.bytes);
    }

    /// Fills the memory from the caller's own thread, before any instruction knows it. The block was handed out with
    /// no pending accesses, so nothing else touches it.
    pub(crate) fn fill_from(&self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes);
        // SAFETY: both sides are `count` bytes long at least, and a fresh block overlaps no slice of the caller's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.0, count) };
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.base.0.addr();
        start..start + self.bytes
    }

    /// So many bytes at an address that a test has.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn at(base: *mut u8, bytes: usize) -> Memory {
        Memory { base: Base(base), bytes, block: None }
    }

    /// The same memory, for filling it outside of the submission lock.
    pub(crate) fn alias(&self) -> Memory {
        Memory { base: self.base, bytes: self.bytes, block: None }
    }
}

/// One place's memory of one kind.
pub(crate) struct Pool {
    pub(crate) place: Place,
    pub(crate) kind: MemoryKind,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) allocator: Allocator,
    /// Where each region starts.
    bases: Vec<Base>,
    /// The device has refused fresh memory, and nothing was given back since.
    pub(crate) full: bool,
}

/// How many blocks of the wanted size may be free, each for a stream that does not want it, before one of them is taken with
/// a wait: what a pipeline has that works on two buffers and has two more in flight each way (docs/adr/0026).
const SPARE: usize = 4;

impl Pool {
    /// Whether the device is asked for fresh memory before a block of `bytes` is taken that needs a wait. Only where streams
    /// run beside the host, and the device says by itself how much there is.
    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        // With less there is no such block, and nothing to wait for.
        let some = bytes..bytes.saturating_mul(SPARE);
        !self.full && !self.device.host_accessible() && some.contains(&self.allocator.stats().cached)
    }
}

/// The host has one kind of memory, whatever a tensor on it is called.
fn kind_at(place: Place, kind: MemoryKind) -> MemoryKind {
    match place {
        Place::Host => MemoryKind::Pageable,
        Place::Device(_) => kind,
    }
}

/// The pools of an engine. Kept under the submission lock.
#[derive(Default)]
pub(crate) struct Pools {
    pools: Vec<Pool>,
    planted: Planted,
}

impl Pools {
    /// Breaks a rule in the pools made from now on, in builds for suites.
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// The pool for a place and kind, if it was made.
    pub(crate) fn find(&self, place: Place, kind: MemoryKind) -> Option<PoolId> {
        let kind = kind_at(place, kind);
        self.pools.iter().position(|pool| pool.place == place && pool.kind == kind).map(PoolId)
    }

    /// Makes a pool on `device`.
    pub(crate) fn add(
        &mut self,
        place: Place,
        kind: MemoryKind,
        device: Arc<dyn Device>,
    ) -> Result<PoolId, AllocatorError> {
        let kind = kind_at(place, kind);
        let config = AllocatorConfig { alignment: device.alignment(), ..AllocatorConfig::default() };
        let mut allocator = Allocator::new(config)?;
        allocator.plant(self.planted);
        self.pools.push(Pool { place, kind, device, allocator, bases: Vec::new(), full: false });
        Ok(PoolId(self.pools.len() - 1))
    }

    pub(crate) fn get(&mut self, id: PoolId) -> &mut Pool {
        &mut self.pools[id.0]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PoolId, &mut Pool)> {
        self.pools.iter_mut().enumerate().map(|(index, pool)| (PoolId(index), pool))
    }

    /// The memory of a block that was handed out.
    pub(crate) fn memory(&self, id: PoolId, block: Block, bytes: usize) -> Memory {
        let base = self.pools[id.0].bases[block.region.index()].0.wrapping_add(block.offset);
        Memory { base: Base(base), bytes, block: Some((id, block)) }
    }

    /// Adds a region that a device has given, which `heap` keeps from now on.
    pub(crate) fn add_region(&mut self, id: PoolId, region: Region, heap: &Heap) -> Result<(), AllocatorError> {
        let pool = &mut self.pools[id.0];
        let base = Base(region.base());
        let number = match pool.allocator.add_region(region.bytes()) {
            Ok(number) => number,
            Err(error) => {
                heap.give_back(&pool.device, region);
                return Err(error);
            }
        };
        if pool.bases.len() <= number.index() {
            pool.bases.resize(number.index() + 1, base);
        }
        pool.bases[number.index()] = base;
        heap.keep(id, number, pool.device.clone(), region);
        Ok(())
    }

    /// Takes the handed-out block back, to be reused after `accesses`.
    pub(crate) fn free(&mut self, id: PoolId, block: BlockId, accesses: streamvm_stream::allocator::AccessSet) {
        if let Err(error) = self.pools[id.0].allocator.free(block, accesses) {
            log::error!("a block was lost when it was freed: {error}");
        }
    }
}

/// The regions of all pools.
#[derive(Default)]
pub(crate) struct Heap {
    regions: Mutex<HashMap<(PoolId, RegionId), Kept>>,
}

/// A region, and the device that it goes back to.
pub(crate) struct Kept {
    device: Arc<dyn Device>,
    region: Region,
}

impl Kept {
    /// Its addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.region.base().addr();
        start..start + self.region.bytes()
    }
}

impl Heap {
    fn keep(&self, pool: PoolId, number: RegionId, device: Arc<dyn Device>, region: Region) {
        let before = unpoisoned(self.regions.lock()).insert((pool, number), Kept { device, region });
        debug_assert!(before.is_none(), "a region's number is given anew only after it was taken out");
    }

    /// Takes a region out that the allocator has let go of: all its points have passed. Under the lock that the
    /// allocator was asked under, because from then on its number may be given to another region.
    pub(crate) fn take(&self, pool: PoolId, number: RegionId) -> Option<Kept> {
        unpoisoned(self.regions.lock()).remove(&(pool, number))
    }

    /// Gives a region back to its device: a driver call. Returns how many bytes it had.
    pub(crate) fn free(&self, kept: Kept) -> u64 {
        let bytes = kept.region.bytes() as u64;
        self.give_back(&kept.device, kept.region);
        bytes
    }

    fn give_back(&self, device: &Arc<dyn Device>, region: Region) {
        // SAFETY: the region came from this device, and is either unused so far, let go of by the allocator after all
        // its points have passed, or left by an engine whose threads are all gone: no operand of it is used again.
        unsafe { device.free(region) };
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let regions = std::mem::take(&mut *unpoisoned(self.regions.lock()));
        for Kept { device, region } in regions.into_values() {
            self.give_back(&device, region);
        }
    }
}

//! Memory: regions of the devices, and the pools that allocate from them.
//!
//! The allocator of a [`Pool`] hands out offsets; this file turns them into addresses. A pool serves one place and memory kind for
//! all streams. [`Heap`] owns the regions. It gives a region back to its device when the allocator reports that no pending
//! instruction uses it, or when the engine and all its threads are gone.
//!
//! [`Pools`] is accessed under the submission lock only; [`Heap`] has a lock of its own.

#![allow(unsafe_code, reason = "fills memory at addresses, and gives regions back")]

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::{Device, MemoryKind, Region};
use streamvm_instructions::Place;
use streamvm_stream::Point;
use streamvm_stream::allocator::{Allocator, AllocatorConfig, AllocatorError, Block, BlockId, RegionId, Want};
use streamvm_stream::mutant::Planted;

use crate::sync::{Mutex, unpoisoned};

/// The index of a pool.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PoolId(usize);

impl PoolId {
    /// The first pool.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn first() -> PoolId {
        PoolId(0)
    }
}

/// The start address of a piece of memory in a region.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Base(pub(crate) *mut u8);

// SAFETY: an address alone gives no access; the code that makes an operand of it is responsible for ordering the accesses.
unsafe impl Send for Base {}

/// The memory behind one resource.
#[derive(Debug)]
pub(crate) struct Memory {
    base: Base,
    bytes: usize,
    pub(crate) block: Option<(PoolId, Block)>,
}

impl Memory {
    /// No memory: for a variable, or a tensor of size zero.
    pub(crate) fn none() -> Memory {
        // Aligned for every dtype, and never dereferenced, because no byte of it is in bounds.
        Memory { base: Base(std::ptr::without_provenance_mut(256)), bytes: 0, block: None }
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its start address. The bytes are allocated and initialised, because devices zero their regions.
    #[inline]
    pub(crate) fn base(&self) -> Base {
        self.base
    }

    /// Checks that a view of `bytes` bytes from the start is within the memory. Views are made within their storage, so a failure
    /// is a bug.
    ///
    /// # Panics
    /// If `bytes` exceeds the size of the memory.
    #[inline]
    pub(crate) fn check_reach(&self, bytes: usize) {
        assert!(bytes <= self.bytes, "a view of {} bytes of memory reaches past them", self.bytes);
    }

    /// Its address range.
    #[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "only an observer asks"))]
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.base.0.addr();
        start..start + self.bytes
    }

    /// Memory that the engine does not own.
    pub(crate) fn at(base: *mut u8, bytes: usize) -> Memory {
        Memory { base: Base(base), bytes, block: None }
    }
}

/// The right to write the memory of a new resource from the caller's thread, before any instruction uses it. Its existence proves:
/// * The memory was handed out without pending accesses, or has no bytes.
/// * Nobody else accesses it: the owner has not given the resource to anybody yet.
/// * The host can access it, because its pool is not of a device's own memory, or the host can access that.
///
/// Only [`Pools::take_passed`] and [`UnusedMemory::none`] make it. It can be filled without the submission lock.
pub(crate) struct UnusedMemory {
    base: Base,
    bytes: usize,
}

impl UnusedMemory {
    /// The right to write no byte.
    pub(crate) fn none() -> UnusedMemory {
        let Memory { base, bytes, .. } = Memory::none();
        UnusedMemory { base, bytes }
    }

    /// Its address range.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.base.0.addr();
        start..start + self.bytes
    }

    /// Copies `bytes`, at most as many as fit, into the memory.
    pub(crate) fn fill_from(self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes);
        // SAFETY: both sides are at least `count` bytes long. The right to write says that the host reaches the memory and that
        // nobody else accesses it, so it can also not overlap a slice of the caller's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.0, count) };
    }
}

/// The memory of one place and one kind.
pub(crate) struct Pool {
    pub(crate) place: Place,
    pub(crate) kind: MemoryKind,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) allocator: Allocator,
    /// The start address of each region, by the region's index.
    bases: Vec<Base>,
    /// Held by the thread that asks the device for a region, until the region is in this pool ([`oom_recovery`](crate::engine::oom_recovery)).
    pub(crate) growing: Arc<Mutex<()>>,
    /// How many regions were added so far.
    pub(crate) grown: u64,
    /// The device has refused fresh memory, and no region was given back since.
    pub(crate) growth_refused: bool,
}

/// How many free blocks of the wanted size, each usable only after a wait, a pool holds before it takes one of
/// them instead of asking for fresh memory: the number of a pipeline that works on two buffers and has two more in flight each way
/// (docs/adr/memory-reuse.md).
const SPARE: usize = 4;

/// Bytes. The host lends more memory than it has, so it refuses none in time. So larger blocks of its memory are waited for; else a loop over large
/// tensors would take several times the memory that it needs.
const MOST_SPARE_OF_HOST: usize = 64 << 20;

impl Pool {
    /// Whether the device is asked for fresh memory before a block of `bytes` bytes is taken that needs a wait.
    pub(crate) fn may_grow(&self, bytes: usize) -> bool {
        // With fewer cached bytes there is no free block to wait for.
        let some = bytes..bytes.saturating_mul(SPARE);
        let is_small = bytes <= MOST_SPARE_OF_HOST || !self.device.id().kind.info().host_memory;
        !self.growth_refused && is_small && some.contains(&self.allocator.stats().cached)
    }
}

/// The memory kind of a pool: the host has only one kind, whatever kind a host tensor names.
fn kind_at(place: Place, kind: MemoryKind) -> MemoryKind {
    match place {
        Place::Host => MemoryKind::Pageable,
        Place::Device(_) => kind,
    }
}

/// The pools of an engine. Accessed under the submission lock.
#[derive(Default)]
pub(crate) struct Pools {
    pools: Vec<Pool>,
    /// Why blocks could not be freed, to be logged once the lock is left.
    pub(crate) lost: Vec<AllocatorError>,
    planted: Planted,
}

impl Pools {
    /// Makes the pools added from now on break a rule on purpose, so that test suites can show that they detect it.
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// The pool for a place and kind, if it exists.
    #[inline]
    pub(crate) fn find(&self, place: Place, kind: MemoryKind) -> Option<PoolId> {
        let kind = kind_at(place, kind);
        self.pools.iter().position(|pool| pool.place == place && pool.kind == kind).map(PoolId)
    }

    /// Adds a pool on `device`.
    ///
    /// # Errors
    /// Those of the allocator's configuration.
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
        let (bases, growing) = (Vec::new(), Arc::default());
        self.pools.push(Pool { place, kind, device, allocator, bases, growing, grown: 0, growth_refused: false });
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

    /// Takes a block whose accesses have all passed, for data that the caller's thread writes itself. The caller makes a resource of
    /// the memory, and gives that resource to nobody before the data is written. `None` if no such block is free.
    pub(crate) fn take_passed(
        &mut self,
        id: PoolId,
        bytes: usize,
        passed: &dyn Fn(Point) -> bool,
    ) -> Option<(Memory, UnusedMemory)> {
        let pool = &mut self.pools[id.0];
        let by_host = pool.kind != MemoryKind::Device || pool.device.id().kind.info().host_memory;
        debug_assert!(by_host, "the host cannot access the memory of {:?}", pool.place);
        if !by_host {
            return None;
        }
        let allocated = pool.allocator.alloc(bytes, Want::Passed, passed)?;
        let memory = self.memory(id, allocated.block, bytes);
        let unused = UnusedMemory { base: memory.base, bytes };
        Some((memory, unused))
    }

    /// Adds a region from the device of the pool; `heap` owns it from now on.
    ///
    /// # Errors
    /// Those of the allocator, with the region, which the caller gives back to its device once it has left the lock.
    pub(crate) fn add_region(
        &mut self,
        id: PoolId,
        region: Region,
        heap: &Heap,
    ) -> Result<(), (AllocatorError, Region)> {
        let pool = &mut self.pools[id.0];
        let base = Base(region.base());
        let number = match pool.allocator.add_region(region.bytes()) {
            Ok(number) => number,
            Err(error) => return Err((error, region)),
        };
        if pool.bases.len() <= number.index() {
            pool.bases.resize(number.index() + 1, base);
        }
        pool.bases[number.index()] = base;
        pool.grown += 1;
        heap.keep(id, number, pool.device.clone(), region);
        Ok(())
    }

    /// Takes a block back. The allocator may reuse it once `accesses` have passed.
    pub(crate) fn free(&mut self, id: PoolId, block: BlockId, accesses: streamvm_stream::allocator::AccessSet) {
        if let Err(error) = self.pools[id.0].allocator.free(block, accesses) {
            self.lost.push(error);
        }
    }
}

/// The regions of all pools.
#[derive(Default)]
pub(crate) struct Heap {
    regions: Mutex<HashMap<(PoolId, RegionId), Kept>>,
}

/// A region, and the device that it came from.
pub(crate) struct Kept {
    device: Arc<dyn Device>,
    region: Region,
}

impl Kept {
    /// Its address range.
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

    /// Takes out a region that the allocator has released: all its points have passed. The caller holds the lock under which the
    /// allocator released it, because the region's number may be given to another region afterwards.
    pub(crate) fn take(&self, pool: PoolId, number: RegionId) -> Option<Kept> {
        unpoisoned(self.regions.lock()).remove(&(pool, number))
    }

    /// Gives a region back to its device, which is a driver call. Returns its size in bytes.
    pub(crate) fn free(&self, kept: Kept) -> u64 {
        let bytes = kept.region.bytes() as u64;
        self.give_back(&kept.device, kept.region);
        bytes
    }

    /// Gives a region, which came from `device` and is in no pool, back to it. This is a driver call.
    pub(crate) fn give_back(&self, device: &Arc<dyn Device>, region: Region) {
        // SAFETY: the region came from this device, and no operand of it is used again. Either it was not used yet, or the
        // allocator released it after all its points had passed, or the engine and all its threads are gone.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use streamvm_cpu::{CpuConfig, CpuDevice};
    use streamvm_ep::{Access, DType, Layout, Operand, Shape};

    use super::*;

    /// Memory that the caller's thread has filled, as an operand over a block of a region sees it; the region goes back to its device at the end.
    #[test]
    fn memory_that_the_host_has_filled_is_read_back() {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(0, CpuConfig::default()));
        let (mut pools, heap) = (Pools::default(), Heap::default());
        let pool = pools.add(Place::Host, MemoryKind::Pageable, device.clone()).expect("a pool");
        let region = device.allocate(MemoryKind::Pageable, 4_096).expect("a region");
        pools.add_region(pool, region, &heap).expect("room for its number");
        let (memory, unused) = pools.take_passed(pool, 12, &|_| true).expect("a block");
        // What does not fit is left out.
        unused.fill_from(&[7; 100]);
        let layout = Layout::contiguous(Shape::new(&[12]).expect("a shape"));
        // SAFETY: the block has twelve bytes, which nothing else uses while the operand lives.
        let operand = unsafe { Operand::new(memory.base().0, DType::U8, layout, Access::Read) };
        assert_eq!(operand.slice::<u8>(), Ok(&[7; 12][..]));
        drop(heap);
        assert_eq!(device.memory(MemoryKind::Pageable).regions, 0);
    }
}

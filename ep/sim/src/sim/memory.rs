//! Memory of simulated devices: blocks of the heap, filled with poison, between two bands of canary bytes.
//!
//! A block is shared by the heap's table and by every queued command that touches it, and is freed with the last of them. So freeing
//! memory while a command is queued is a finding, not undefined behaviour of this process.

use std::alloc::{Layout as HeapLayout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every region, in bytes: the same as CUDA's.
pub(super) const ALIGNMENT: usize = 256;

/// The contents of fresh memory: not zero, not a small number, not a valid bool.
pub(super) const POISON: u8 = 0xA5;

/// The contents of the bands.
const CANARY: u8 = 0xC7;

/// The size of each band, in bytes.
const BAND: usize = ALIGNMENT;

/// A block of memory, freed when dropped.
#[derive(Debug)]
pub(super) struct Block {
    /// The start of the first band.
    start: *mut u8,
    layout: HeapLayout,
}

// SAFETY: a block is an address and a size, and frees that memory when dropped; memory is not tied to a thread.
unsafe impl Send for Block {}
// SAFETY: a shared block gives its fields, and accesses its bands only under the lock of the heap. The bytes between the bands are
// accessed only through operands, whose makers guarantee that nothing races.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates `bytes` bytes of poison between two bands; `None` if the host has no memory for them.
    fn allocate(bytes: usize) -> Option<Block> {
        let whole = bytes.checked_add(2 * BAND)?;
        let layout = HeapLayout::from_size_align(whole, ALIGNMENT).ok()?;
        // SAFETY: the size is not 0, because it includes two bands.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: `whole` bytes from `start` have just been allocated.
        unsafe { start.write_bytes(CANARY, whole) };
        // SAFETY: the first band, of `BAND` bytes, is within the allocation.
        let base = unsafe { start.add(BAND) };
        // SAFETY: the allocation has `bytes` bytes between the bands.
        unsafe { base.write_bytes(POISON, bytes) };
        Some(Block { start, layout })
    }

    /// The address of the first byte between the bands.
    fn base(&self) -> *mut u8 {
        self.start.wrapping_add(BAND)
    }

    /// The addresses of the bytes between the bands.
    pub(super) fn range(&self) -> Range<usize> {
        let base = self.base().addr();
        base..base + (self.layout.size() - 2 * BAND)
    }

    /// Checks and restores the bands. Returns the offset from the base of the first byte that was overwritten.
    fn restore_bands(&self) -> Option<isize> {
        let bytes = self.layout.size() - 2 * BAND;
        let mut broken = None;
        for at in (0..BAND).chain(BAND + bytes..2 * BAND + bytes) {
            let byte = self.start.wrapping_add(at);
            // SAFETY: `at` is within a band of the allocation, which is initialised.
            if unsafe { byte.read() } != CANARY {
                broken = broken.or(Some(at as isize - BAND as isize));
                // SAFETY: as above; no other code may write a band.
                unsafe { byte.write(CANARY) };
            }
        }
        broken
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `allocate` got `start` with this layout, and a block is dropped once.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// All blocks of a simulated machine that have not been freed, by their first address.
#[derive(Debug, Default)]
pub(super) struct Heap {
    blocks: Mutex<BTreeMap<usize, Arc<Block>>>,
}

impl Heap {
    /// Allocates a block and returns its address; `None` if the host has no memory for it.
    pub(super) fn allocate(&self, bytes: usize) -> Option<*mut u8> {
        let block = Block::allocate(bytes)?;
        let base = block.base();
        self.lock().insert(base.addr(), Arc::new(block));
        Some(base)
    }

    /// Removes the block at `base` from the table.
    pub(super) fn remove(&self, base: usize) -> Option<Arc<Block>> {
        self.lock().remove(&base)
    }

    /// The block that contains `address`.
    pub(super) fn containing(&self, address: usize) -> Option<Arc<Block>> {
        let blocks = self.lock();
        let (_, block) = blocks.range(..=address).next_back()?;
        block.range().contains(&address).then(|| Arc::clone(block))
    }

    /// The offset from the block's first byte of the first byte beside it that was overwritten. Reported once.
    pub(super) fn overrun(&self, block: &Block) -> Option<isize> {
        let _one_at_a_time = self.lock();
        block.restore_bands()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Block>>> {
        // No code here panics while the table is inconsistent, so a poisoned lock guards a valid table.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_poison_and_aligned() {
        let heap = Heap::default();
        let base = heap.allocate(100).unwrap();
        assert_eq!(base.addr() % ALIGNMENT, 0);
        // SAFETY: the block has 100 bytes, and nothing writes them meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(base, 100) };
        assert_eq!(bytes, [POISON; 100]);
        assert!(heap.containing(base.addr() + 99).is_some() && heap.containing(base.addr() + 100).is_none());
        let block = heap.remove(base.addr()).unwrap();
        assert_eq!(block.range(), base.addr()..base.addr() + 100);
        assert!(heap.containing(base.addr()).is_none() && heap.remove(base.addr()).is_none());
    }

    #[test]
    fn a_write_beside_a_block_is_told_once() {
        let heap = Heap::default();
        for (offset, expected) in [(-1, -1), (-(BAND as isize), -256), (10, 10), (265, 265)] {
            let base = heap.allocate(10).unwrap();
            let block = heap.containing(base.addr()).unwrap();
            assert_eq!(heap.overrun(&block), None);
            let byte = base.wrapping_offset(offset);
            // SAFETY: the byte is in a band of the block, which no other thread reads meanwhile.
            unsafe { byte.write(0) };
            assert_eq!((heap.overrun(&block), heap.overrun(&block)), (Some(expected), None));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri gives up where a machine refuses")]
    fn more_than_the_machine_has_is_refused() {
        assert!(Heap::default().allocate(usize::MAX).is_none());
        assert!(Heap::default().allocate(isize::MAX as usize - 4096).is_none());
    }
}

//! Memory of simulated devices: blocks of the heap, filled with poison, between two bands of canary bytes.
//!
//! A block is shared by the heap's table and by every queued command that touches it, and goes back to the machine with
//! the last of them. So a command that is still queued when its memory is freed is a finding, not a fault of this
//! program.

use std::alloc::{Layout as HeapLayout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every region in bytes: that of CUDA's.
pub(super) const ALIGNMENT: usize = 256;

/// What fresh memory holds: no zero, no small number, no truth value.
pub(super) const POISON: u8 = 0xA5;

/// What the bands beside a block hold.
const CANARY: u8 = 0xC7;

/// Bytes of each band.
const BAND: usize = ALIGNMENT;

/// A block of memory, freed when dropped.
#[derive(Debug)]
pub(super) struct Block {
    /// Start of the first band.
    start: *mut u8,
    layout: HeapLayout,
}

// SAFETY: a block is an address and a size, and frees them; memory belongs to no thread.
unsafe impl Send for Block {}
// SAFETY: a shared block tells its fields and reads and writes its bands under the lock of the heap; the bytes between
// are touched only by those who hold operands of them, which promise that nothing races.
unsafe impl Sync for Block {}

impl Block {
    /// `bytes` bytes of poison between two bands; `None` if the machine has no room for them.
    fn allocate(bytes: usize) -> Option<Block> {
        let whole = bytes.checked_add(2 * BAND)?;
        let layout = HeapLayout::from_size_align(whole, ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: `whole` bytes from `start` have just been allocated.
        unsafe { start.write_bytes(CANARY, whole) };
        // SAFETY: a band lies before the bytes.
        let base = unsafe { start.add(BAND) };
        // SAFETY: `bytes` bytes lie between the bands.
        unsafe { base.write_bytes(POISON, bytes) };
        Some(Block { start, layout })
    }

    /// Address of the first byte between the bands.
    fn base(&self) -> *mut u8 {
        self.start.wrapping_add(BAND)
    }

    /// The bytes between the bands.
    pub(super) fn range(&self) -> Range<usize> {
        let base = self.base().addr();
        base..base + (self.layout.size() - 2 * BAND)
    }

    /// Looks at the bands and mends them: the first byte that somebody has written, counted from the base.
    fn mend(&self) -> Option<isize> {
        let bytes = self.layout.size() - 2 * BAND;
        let mut broken = None;
        for at in (0..BAND).chain(BAND + bytes..2 * BAND + bytes) {
            let byte = self.start.wrapping_add(at);
            // SAFETY: `at` lies within the allocation, in a band, which is initialised.
            if unsafe { byte.read() } != CANARY {
                broken = broken.or(Some(at as isize - BAND as isize));
                // SAFETY: as above; nobody else may write a band.
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

/// All blocks of a world that have not been freed, by their first address.
#[derive(Debug, Default)]
pub(super) struct Heap {
    blocks: Mutex<BTreeMap<usize, Arc<Block>>>,
}

impl Heap {
    /// A new block; its address. `None` if the machine has no room for it.
    pub(super) fn allocate(&self, bytes: usize) -> Option<*mut u8> {
        let block = Block::allocate(bytes)?;
        let base = block.base();
        self.lock().insert(base.addr(), Arc::new(block));
        Some(base)
    }

    /// Takes out the block at `base`.
    pub(super) fn remove(&self, base: usize) -> Option<Arc<Block>> {
        self.lock().remove(&base)
    }

    /// The block that holds `address`.
    pub(super) fn holding(&self, address: usize) -> Option<Arc<Block>> {
        let blocks = self.lock();
        let (_, block) = blocks.range(..=address).next_back()?;
        block.range().contains(&address).then(|| Arc::clone(block))
    }

    /// The first byte beside `block` that somebody has written, counted from the block's first byte. It is told once.
    pub(super) fn overrun(&self, block: &Block) -> Option<isize> {
        let _one_at_a_time = self.lock();
        block.mend()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Block>>> {
        // No code here panics half way through a change, so a poisoned lock guards a whole table.
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
        assert!(heap.holding(base.addr() + 99).is_some() && heap.holding(base.addr() + 100).is_none());
        let block = heap.remove(base.addr()).unwrap();
        assert_eq!(block.range(), base.addr()..base.addr() + 100);
        assert!(heap.holding(base.addr()).is_none() && heap.remove(base.addr()).is_none());
    }

    #[test]
    fn a_write_beside_a_block_is_told_once() {
        let heap = Heap::default();
        for (offset, expected) in [(-1, -1), (-(BAND as isize), -256), (10, 10), (265, 265)] {
            let base = heap.allocate(10).unwrap();
            let block = heap.holding(base.addr()).unwrap();
            assert_eq!(heap.overrun(&block), None);
            let byte = base.wrapping_offset(offset);
            // SAFETY: the byte lies in a band of the block, which nobody reads meanwhile.
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

//! One allocation: its addresses, and the bytes after them.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::ops::Range;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arena::POISON;

/// Alignment of the bytes after a device address; no kernel needs more.
const ALIGNMENT: usize = 256;

/// The kind of memory, and the device of an allocation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A device, by its number.
    Device(usize),
    /// Pinned host memory, allocated while this device was current.
    Pinned(usize),
    /// Pinned memory that is write-combined: the host writes it past its caches, and reads it very slowly.
    Combined(usize),
    /// Pageable host memory, which the driver has not allocated, for the duration of one call.
    Host,
}

impl Home {
    /// Is it pinned memory, of either kind?
    pub(crate) fn is_pinned(self) -> bool {
        matches!(self, Home::Pinned(_) | Home::Combined(_))
    }
}

/// Allocated memory. Commands that use it keep it alive, so its bytes outlive a call that frees it too early.
pub(crate) struct Allocation {
    pub(crate) home: Home,
    /// The context in which it was allocated.
    pub(crate) context: u64,
    /// The addresses that the program uses.
    pub(crate) range: Range<usize>,
    /// Number of allocations before it, for reports.
    pub(crate) number: u64,
    /// Number of queued commands that write it.
    pub(crate) writers: AtomicUsize,
    /// Which bytes have values; `None` if that is not kept, and all count as having one.
    valued: Option<Mutex<Vec<bool>>>,
    bytes: NonNull<u8>,
    /// The layout of the bytes, if they were allocated separately from the addresses.
    backing: Option<Layout>,
}

// SAFETY: the bytes are not tied to a thread, and all other fields are plain data.
unsafe impl Send for Allocation {}
// SAFETY: shared references only hand out the raw pointer; the code that dereferences it orders the accesses, see `Command`.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Device memory: separate bytes after addresses that the host cannot access. `None` if the machine has no more memory. `keeps_valued`: whether to keep
    /// which bytes have values.
    pub(super) fn device(
        device: usize,
        context: u64,
        range: Range<usize>,
        number: u64,
        keeps_valued: bool,
    ) -> Option<Allocation> {
        let layout = Layout::from_size_align(range.len().max(1), ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let bytes = NonNull::new(unsafe { alloc(layout) })?;
        let (home, writers) = (Home::Device(device), AtomicUsize::new(0));
        let valued = keeps_valued.then(|| Mutex::new(vec![false; range.len()]));
        let new = Allocation { home, context, range, number, writers, valued, bytes, backing: Some(layout) };
        new.poison();
        Some(new)
    }

    /// Pinned memory: the bytes are at the addresses, which the host can already access.
    pub(super) fn pinned(home: Home, context: u64, range: Range<usize>, number: u64) -> Option<Allocation> {
        let bytes = NonNull::new(with_exposed_provenance_mut::<u8>(range.start))?;
        let writers = AtomicUsize::new(0);
        let new = Allocation { home, context, range, number, writers, valued: None, bytes, backing: None };
        new.poison();
        Some(new)
    }

    /// Pageable memory that is passed to a call. The caller keeps it during the call.
    pub(crate) fn host(range: Range<usize>) -> Option<Allocation> {
        let bytes = NonNull::new(with_exposed_provenance_mut::<u8>(range.start))?;
        let (home, writers) = (Home::Host, AtomicUsize::new(0));
        Some(Allocation { home, context: 0, range, number: 0, writers, valued: None, bytes, backing: None })
    }

    fn poison(&self) {
        // SAFETY: the bytes are exactly those of the new allocation, to which no other code has a pointer yet.
        unsafe { self.bytes.write_bytes(POISON, self.range.len()) };
    }

    fn valued(&self) -> Option<MutexGuard<'_, Vec<bool>>> {
        // Every change is a fill or a copy, so the state is consistent even after a panic.
        self.valued.as_ref().map(|valued| valued.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The device that holds it; `None` for host memory.
    pub(crate) fn device_number(&self) -> Option<usize> {
        match self.home {
            Home::Device(device) => Some(device),
            Home::Pinned(_) | Home::Combined(_) | Home::Host => None,
        }
    }

    /// The pointer of this process to the byte at `address`.
    pub(crate) fn translate(&self, address: usize) -> *mut u8 {
        self.bytes.as_ptr().wrapping_add(address.wrapping_sub(self.range.start))
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.home {
            Home::Device(device) => write!(f, "memory #{} of cuda:{device}", self.number)?,
            Home::Pinned(_) => write!(f, "pinned memory #{}", self.number)?,
            Home::Combined(_) => write!(f, "write-combined memory #{}", self.number)?,
            Home::Host => write!(f, "pageable memory")?,
        }
        write!(f, " ({} bytes at {:#x})", self.range.len(), self.range.start)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(layout) = self.backing {
            // SAFETY: `device` allocated the bytes with this layout, and no command uses them, since commands keep the allocation alive.
            unsafe { dealloc(self.bytes.as_ptr(), layout) };
        }
    }
}

/// Some bytes of an allocation, which the span keeps alive.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) range: Range<usize>,
}

impl Span {
    /// The pointer of this process to the first byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.allocation.translate(self.range.start)
    }

    /// Which of the bytes have values: they were written, or are in memory that the host can write.
    pub(crate) fn valued(&self) -> Vec<bool> {
        match self.allocation.valued() {
            Some(valued) => valued[self.offsets()].to_vec(),
            None => vec![true; self.range.len()],
        }
    }

    /// Notes that all of the bytes have values.
    pub(crate) fn set_valued(&self) {
        if let Some(mut valued) = self.allocation.valued() {
            valued[self.offsets()].fill(true);
        }
    }

    /// Notes that those bytes have values which have one in the source of a copy, of the same length.
    pub(crate) fn copy_valued_of(&self, source: &Span) {
        if self.keeps_valued() {
            self.copy_valued(&source.valued());
        }
    }

    /// Is it kept which of the bytes have values?
    pub(crate) fn keeps_valued(&self) -> bool {
        self.allocation.valued.is_some()
    }

    /// Notes which bytes have values, and which have none.
    pub(crate) fn copy_valued(&self, from: &[bool]) {
        if let Some(mut valued) = self.allocation.valued() {
            valued[self.offsets()].copy_from_slice(from);
        }
    }

    /// The bytes, by their distance from the first of the allocation.
    fn offsets(&self) -> Range<usize> {
        let start = self.allocation.range.start;
        self.range.start - start..self.range.end - start
    }

    /// Counts a queued command that will write the bytes.
    pub(crate) fn writer_comes(&self) {
        self.allocation.writers.fetch_add(1, Ordering::AcqRel);
    }

    /// Uncounts such a command, which has passed.
    pub(crate) fn writer_goes(&self) {
        self.allocation.writers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Will a queued command write the allocation?
    pub(crate) fn is_written(&self) -> bool {
        self.allocation.writers.load(Ordering::Acquire) > 0
    }
}

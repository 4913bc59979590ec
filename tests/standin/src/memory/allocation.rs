//! One allocation: its addresses, and where its bytes lie.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::ops::Range;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::arena::POISON;

/// Alignment of the bytes behind a device address: no kernel needs more.
const ALIGNMENT: usize = 256;

/// Where an allocation belongs to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A device, by its number.
    Device(usize),
    /// Pinned memory of the host, allocated while this device was current.
    Pinned(usize),
    /// Pinned memory that is write-combined: the host writes it past its caches, and reads it very slowly.
    Combined(usize),
    /// Pageable memory of the host, which the driver has not given out: for the time of one call.
    Host,
}

impl Home {
    /// Is it pinned memory, of either kind?
    pub(crate) fn is_pinned(self) -> bool {
        matches!(self, Home::Pinned(_) | Home::Combined(_))
    }
}

/// Memory that was given out. Commands that use it keep it, so its bytes outlive a call that gives it back too early.
pub(crate) struct Allocation {
    pub(crate) home: Home,
    /// The context that it was allocated in.
    pub(crate) context: u64,
    /// The addresses that the program knows.
    pub(crate) range: Range<usize>,
    /// How many allocations there were before it: for reports.
    pub(crate) number: u64,
    /// Commands that are queued and write it.
    pub(crate) writers: AtomicUsize,
    bytes: NonNull<u8>,
    /// Of the bytes, where they are not the addresses themselves.
    backing: Option<Layout>,
}

// SAFETY: the bytes belong to the allocation, and everything else in it is plain data.
unsafe impl Send for Allocation {}
// SAFETY: the pointer is only handed out raw; who follows it orders the accesses, see `Command`.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Device memory: bytes of its own behind addresses that the host cannot reach. `None` if the machine has no more.
    pub(super) fn device(device: usize, context: u64, range: Range<usize>, number: u64) -> Option<Allocation> {
        let layout = Layout::from_size_align(range.len().max(1), ALIGNMENT).ok()?;
        // SAFETY: the size is not 0.
        let bytes = NonNull::new(unsafe { alloc(layout) })?;
        let (home, writers) = (Home::Device(device), AtomicUsize::new(0));
        let new = Allocation { home, context, range, number, writers, bytes, backing: Some(layout) };
        new.poison();
        Some(new)
    }

    /// Pinned memory: the bytes are at the addresses, which the host can reach already.
    pub(super) fn pinned(home: Home, context: u64, range: Range<usize>, number: u64) -> Option<Allocation> {
        let bytes = NonNull::new(with_exposed_provenance_mut::<u8>(range.start))?;
        let writers = AtomicUsize::new(0);
        let new = Allocation { home, context, range, number, writers, bytes, backing: None };
        new.poison();
        Some(new)
    }

    /// Pageable memory that a call names. The caller keeps it for the time of the call.
    pub(crate) fn host(range: Range<usize>) -> Option<Allocation> {
        let bytes = NonNull::new(with_exposed_provenance_mut::<u8>(range.start))?;
        let (home, writers) = (Home::Host, AtomicUsize::new(0));
        Some(Allocation { home, context: 0, range, number: 0, writers, bytes, backing: None })
    }

    fn poison(&self) {
        // SAFETY: the bytes are those of a new allocation, all of them, and nobody else knows them yet.
        unsafe { self.bytes.write_bytes(POISON, self.range.len()) };
    }

    /// The device that it is on; none for memory of the host.
    pub(crate) fn device_number(&self) -> Option<usize> {
        match self.home {
            Home::Device(device) => Some(device),
            Home::Pinned(_) | Home::Combined(_) | Home::Host => None,
        }
    }

    /// Where the byte behind `address` lies for this process.
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
            // SAFETY: `device` allocated the bytes with this layout; commands that use them keep the allocation alive.
            unsafe { dealloc(self.bytes.as_ptr(), layout) };
        }
    }
}

/// Some bytes of an allocation, which they keep alive.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) allocation: Arc<Allocation>,
    pub(crate) range: Range<usize>,
}

impl Span {
    /// The first of the bytes, for this process.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.allocation.translate(self.range.start)
    }

    /// A command that is queued will write the bytes.
    pub(crate) fn writer_comes(&self) {
        self.allocation.writers.fetch_add(1, Ordering::AcqRel);
    }

    /// That command is over.
    pub(crate) fn writer_goes(&self) {
        self.allocation.writers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Will a queued command write the allocation?
    pub(crate) fn is_written(&self) -> bool {
        self.allocation.writers.load(Ordering::Acquire) > 0
    }
}

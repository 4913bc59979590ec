//! Memory of devices: kinds, regions and counts.

use std::fmt;

use crate::device::DeviceId;

/// Kind of memory that a device hands out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// The device's own memory.
    Device,
    /// Host memory that the device can copy from and to without staging.
    Pinned,
    /// Host memory that the device can copy from without staging, and that the host only writes: where the device's driver
    /// knows such memory, the host's caches are left out, so reading it is correct and very slow. Copies alone write it: they see to it that the device
    /// finds what was written. A caller's own kernels reach it by the address that [`RawCall`](crate::RawCall) has, which need not be the
    /// host's.
    Upload,
    /// Ordinary host memory.
    Pageable,
}

impl MemoryKind {
    /// Every kind, in the order of the enum.
    pub const ALL: [MemoryKind; 4] = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Upload, MemoryKind::Pageable];

    /// Is it host memory that the device can copy from and to?
    pub const fn is_page_locked(self) -> bool {
        matches!(self, MemoryKind::Pinned | MemoryKind::Upload)
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryKind::Device => "device",
            MemoryKind::Pinned => "pinned",
            MemoryKind::Upload => "upload",
            MemoryKind::Pageable => "pageable",
        })
    }
}

/// Use of one kind of memory of one device.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of live regions.
    pub in_use: u64,
    /// The most that `in_use` has been, in bytes.
    pub peak: u64,
    /// Most bytes over all kinds of the device, if limited.
    pub limit: Option<u64>,
    /// Live regions.
    pub regions: u64,
    /// Regions ever allocated.
    pub allocations: u64,
}

/// A piece of device memory, owned.
///
/// Given back by [`Device::free`](crate::Device::free) alone. Dropping a region leaks its memory:
/// past a shutdown deadline something may still be using it, and a leak is the safe choice then.
#[derive(Debug)]
#[must_use = "dropping a region leaks its memory; give it to Device::free"]
pub struct Region {
    base: *mut u8,
    bytes: usize,
    kind: MemoryKind,
    device: DeviceId,
}

// SAFETY: a region is an address and a size; it neither reads nor writes the memory, and device
// memory belongs to no thread.
unsafe impl Send for Region {}
// SAFETY: a shared region only tells its fields.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `bytes` bytes at `base`, for implementations of [`Device`](crate::Device). This
    /// promises nothing about the memory: the promises are those of the device that hands it out.
    pub fn new(base: *mut u8, bytes: usize, kind: MemoryKind, device: DeviceId) -> Region {
        Region { base, bytes, kind, device }
    }

    /// Address of the first byte. Aligned even for a region of zero bytes, which has no memory.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its size in bytes, as asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its kind.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The device that it came from.
    pub fn device(&self) -> DeviceId {
        self.device
    }
}

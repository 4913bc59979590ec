//! Memory of a device: regions and counters.

use crate::names::device_id::DeviceId;
use crate::names::memory_kind::MemoryKind;

/// Counters of one kind of memory of one device.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of live regions.
    pub in_use: u64,
    /// The most that `in_use` has been, in bytes.
    pub peak: u64,
    /// The most bytes over all kinds of memory of the device; `None` if there is no limit.
    pub limit: Option<u64>,
    /// Live regions.
    pub regions: u64,
    /// Regions allocated so far.
    pub allocations: u64,
}

/// A piece of device memory, owned.
///
/// Only [`Device::free`](crate::Device::free) frees it; dropping a region leaks its memory. That is the safe choice after a missed
/// shutdown deadline, when queued commands may still use the memory.
#[derive(Debug)]
#[must_use = "dropping a region leaks its memory; give it to Device::free"]
pub struct Region {
    base: *mut u8,
    bytes: usize,
    kind: MemoryKind,
    device: DeviceId,
}

// SAFETY: a region is an address and a size. It does not access the memory, and device memory is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: a shared region only gives its fields.
unsafe impl Sync for Region {}

impl Region {
    /// A region of `bytes` bytes at `base`, for implementations of [`Device`](crate::Device). It makes no promise about the memory; the
    /// device that hands it out does.
    pub fn new(base: *mut u8, bytes: usize, kind: MemoryKind, device: DeviceId) -> Region {
        Region { base, bytes, kind, device }
    }

    /// Address of the first byte. It is aligned even for a region of zero bytes, which has no memory.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The size in bytes, as requested.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The kind of memory.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The device that allocated it.
    pub fn device(&self) -> DeviceId {
        self.device
    }
}

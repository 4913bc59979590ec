//! Kinds of memory.

use std::fmt;

/// Kind of memory that a device hands out.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// The device's own memory.
    Device,
    /// Host memory that the device can copy from and to without staging.
    Pinned,
    /// Host memory that the device can copy from without staging, and that the host only writes.
    ///
    /// Where the driver supports it, the memory is write-combined: it bypasses the host's caches, so reading it is correct but very slow.
    /// Only copy commands write it, because they make sure that the device sees the data. A caller's own kernels use the address in
    /// [`RawCall`](crate::RawCall), which may differ from the host's.
    Upload,
    /// Ordinary host memory.
    Pageable,
}

impl MemoryKind {
    /// Every kind, in the order of the enum.
    pub const ALL: [MemoryKind; 4] = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Upload, MemoryKind::Pageable];

    /// Whether it is host memory that the device can copy from and to.
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

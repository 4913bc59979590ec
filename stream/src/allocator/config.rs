//! The settings of an allocator.

use super::AllocatorError;

/// Settings of one allocator: one device and one kind of memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AllocatorConfig {
    /// The alignment in bytes: a power of two, 64 on CPU and 256 on CUDA. Every offset and size is a multiple of it. Regions must
    /// start at an address with this alignment.
    pub alignment: usize,
    /// Regions are requested in multiples of this size in bytes, as long as the limit allows.
    pub region_bytes: usize,
    /// The most bytes that all regions together may reserve; `None` for no limit but the driver's.
    pub limit: Option<usize>,
}

impl Default for AllocatorConfig {
    /// 64 bytes of alignment (a cache line of x86 and most Arm), regions of 2 MiB (a huge page on both, and the
    /// granularity of CUDA's virtual memory), no limit.
    fn default() -> AllocatorConfig {
        AllocatorConfig { alignment: 64, region_bytes: 2 << 20, limit: None }
    }
}

impl AllocatorConfig {
    /// Log2 of the alignment.
    pub(super) fn shift(&self) -> Result<u32, AllocatorError> {
        if self.alignment.is_power_of_two() && self.alignment <= isize::MAX as usize {
            Ok(self.alignment.trailing_zeros())
        } else {
            Err(AllocatorError::BadAlignment { alignment: self.alignment })
        }
    }
}

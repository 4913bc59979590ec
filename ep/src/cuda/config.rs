//! How CUDA devices are set up.

/// How the CUDA devices of one engine are set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaConfig {
    /// Most bytes that may be allocated from each device, over all memory kinds; `None` for what the machine has.
    pub memory_limit: Option<u64>,
    /// Waits for each command before its call returns. What fails in a kernel then names its instruction, rather than the
    /// range of instructions that were under way; nothing runs side by side.
    pub sync_each_op: bool,
    /// Refuses copies that touch pageable memory ([`Error::Pageable`](crate::Error::Pageable)), rather than have the driver
    /// stage them, which holds the calling thread up.
    pub strict_pinned: bool,
    /// Notes when each instruction runs, by the device's clock, for [`Device::take_times`](crate::Device::take_times): two events
    /// more for each, and whoever sets this takes the times again and again. An engine sets it by itself, where it writes a
    /// trace and nowhere else.
    pub timed: bool,
    /// Multiplies matrices by our own kernel where cuBLAS is found, too.
    pub own_matmul: bool,
}

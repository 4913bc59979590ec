//! The configuration of CUDA devices.

/// The configuration of the CUDA devices of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaConfig {
    /// The most bytes that may be allocated from each device, over all memory kinds; `None` if only the machine limits it. What kernels, cuBLAS and
    /// reductions need of the device for themselves does not count.
    pub memory_limit: Option<u64>,
    /// Makes each call wait for its command. The error of a kernel then names its instruction, and not only a range of instructions;
    /// nothing runs in parallel.
    pub sync_each_op: bool,
    /// Refuses copies of pageable memory ([`Error::Pageable`](streamvm_ep::Error::Pageable)). Otherwise the driver stages them and blocks the
    /// calling thread.
    pub strict_pinned: bool,
    /// Measures when each instruction runs, by the device's clock, for [`Device::take_times`](streamvm_ep::Device::take_times). This costs two
    /// more events per instruction, and the times must be taken regularly. An engine sets it itself while it writes a trace, and only
    /// then.
    pub timed: bool,
    /// Uses our own kernel for matrix products even if cuBLAS is found.
    pub own_matmul: bool,
}

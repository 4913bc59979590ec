//! From a call to a launch: checks, the kernel, its arguments, and the grid.

use crate::cuda::abi::Arguments;
use crate::cuda::function::FunctionName;

/// One launch of one kernel: all that a driver's launch call wants.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Which kernel.
    pub function: FunctionName,
    /// Blocks per axis; at most 2^31 - 1 on the first, 65535 on the others, none 0.
    pub grid: [u32; 3],
    /// Threads of a block per axis; at most 1024 in all.
    pub block: [u32; 3],
    /// Bytes of shared memory of a block, at most 48 KiB: what any device gives without being asked for more.
    pub shared_bytes: u32,
    /// Its one parameter.
    pub arguments: Arguments,
}

//! The CPU as a device: aligned memory, streams that run each command in the calling thread, and
//! the kernels.

mod device;
mod kernels;
mod stream;

pub use device::{CpuConfig, CpuDevice};
pub(crate) use kernels::{check_copy, check_fill, copy, fill, register};

//! CUDA: devices behind a driver that is looked for at run time, and the kernels that they run.
//!
//! Planning needs no driver: [`plan()`] checks a call as the CPU kernels do, and gives a [`Launch`]: one kernel with its
//! [`Arguments`](abi::Arguments) and its grid. [`FunctionName`] says in which [`Module`] of PTX the kernel is; the PTX is made
//! from the sources in `kernels/` by `make ptx`. All else is behind the feature `cuda`: [`open`] gives the machine's devices,
//! or says why there is none.
//!
//! # How it maps
//!
//! | here | there |
//! |---|---|
//! | device | its primary context, retained at first use |
//! | stream | a non-blocking stream with a priority; a queue of its own, never the default one |
//! | event | an event without timing for each device that has recorded it, kept for reuse |
//! | when an instruction ran | two events with timing around it, where that is wanted |
//! | device memory | `cuMemAlloc`, zeroed by the device: asked for in large regions by an allocator above |
//! | pinned and pageable memory | page-locked host memory, reached by every device under the host's address |
//! | upload memory | page-locked and write-combined, reached by every device under one address, which need not be the host's |
//! | copy | `cuMemcpyAsync`, which sees from the addresses what it copies between; views with gaps by a kernel |
//! | kernel | one launch with one parameter, planned in the thread that launches |
//! | a kernel's own failure | a status in page-locked memory, read once the launch is over |
//!
//! # What a thread needs
//!
//! A context is current for each thread (`current.rs`): a thread that launches binds it once
//! ([`Device::bind_thread`]); in any other, each call pushes and pops it.

pub mod abi;
mod absent;
mod axes;
#[cfg(feature = "cuda")]
mod blas;
#[cfg(feature = "cuda")]
mod book;
#[cfg(feature = "cuda")]
mod compile;
mod config;
#[cfg(feature = "cuda")]
mod current;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod driver;
mod error;
mod function;
#[cfg(feature = "cuda")]
mod functions;
#[cfg(feature = "cuda")]
mod gemm;
#[cfg(feature = "cuda")]
mod library;
#[cfg(feature = "cuda")]
mod marks;
#[cfg(feature = "cuda")]
mod own;
mod plan;
mod plan_place;
mod plan_reduce;
#[cfg(feature = "cuda")]
mod probe;
#[cfg(feature = "cuda")]
mod progress;
mod source;
#[cfg(feature = "cuda")]
mod statuses;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod times;
#[cfg(feature = "cuda")]
mod world;

use std::sync::Arc;

pub use absent::{CudaAbsent, CudaVersion};
pub use config::CudaConfig;
#[cfg(feature = "cuda")]
pub use device::{CudaDevice, CudaProducts};
pub use error::DriverError;
pub use function::{FunctionName, Module};
#[cfg(feature = "cuda")]
pub use own::{CudaArgument, CudaFunction, CudaGrid};
pub use plan::{Launch, plan, plan_copy, plan_fill};
pub use source::{CompileError, Ptx};

use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::infer::supports;
use crate::kernel::Kernel;
use crate::kernel_registry::KernelRegistry;
use crate::op::Op;

/// Registers every op and dtype that there is a kernel for. A launch is planned, which checks the operands, so nothing is
/// left to check before it.
pub(crate) fn register(registry: &mut KernelRegistry) {
    for op in Op::ALL {
        for dtype in DType::ALL.into_iter().filter(|&dtype| supports(op, dtype)) {
            registry.register(Kernel { op, device: DeviceKind::Cuda, dtype, run: |_| Ok(()) });
        }
    }
}

/// The CUDA devices of this machine, `cuda:0` first, as one engine sees them; see [`CudaDevice::open`].
///
/// # Errors
///
/// Why there is none; [`CudaAbsent::NotBuilt`] where this build left CUDA out.
#[cfg(feature = "cuda")]
pub fn open(config: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
    Ok(CudaDevice::open(config)?.into_iter().map(|device| -> Arc<dyn Device> { device }).collect())
}

/// The CUDA devices of this machine: none, as this build left CUDA out.
///
/// # Errors
///
/// [`CudaAbsent::NotBuilt`].
#[cfg(not(feature = "cuda"))]
pub fn open(_: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
    Err(CudaAbsent::NotBuilt)
}

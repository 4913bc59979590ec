//! CUDA: devices behind a driver that is loaded at run time, and their kernels.
//!
//! Main types: `CudaDevice` (with the feature `cuda`), [`CudaConfig`], [`Launch`], [`KernelName`], [`Ptx`].
//!
//! Planning needs no driver. [`plan()`] checks a call as the CPU kernels do, and returns a [`Launch`]: one kernel with its
//! [`Arguments`](abi::Arguments) and its grid. [`KernelName`] says which [`Module`] of PTX contains the kernel. The PTX in `ep/cuda/ptx` is
//! made from the sources in `kernels/` by `make ptx`. Everything else needs the feature `cuda`: [`open`] returns the machine's devices,
//! or the reason why there is none.
//!
//! # Mapping to the driver
//!
//! | this crate | CUDA |
//! |---|---|
//! | device | its primary context, retained at first use |
//! | stream | a non-blocking stream with a priority; a stream of its own, never the default one |
//! | event | an event without timing for each device that has recorded it, kept for reuse |
//! | time of an instruction | two events with timing around it, if requested |
//! | device memory | `cuMemAlloc`, zeroed by the device; an allocator above requests large regions |
//! | pinned and pageable memory | page-locked host memory, at the host's address on every device |
//! | upload memory | page-locked and write-combined, at one address on every device, which may differ from the host's |
//! | copy | `cuMemcpyAsync`, which derives the direction from the addresses; views with gaps by a kernel |
//! | kernel of an elementwise op | PTX that is written at the first launch, around functions that ship (`elementwise/`) |
//! | kernel | one launch with one parameter, planned in the thread that launches; two for a reduction of many elements to few (`plan/parts.rs`) |
//! | elementwise steps of a program | one kernel, written when the program is compiled (`fused/`) |
//! | commands that are queued again over the same memory | a graph, captured on their stream and launched by one call (`stream/graphs.rs`) |
//! | a kernel's own failure | a status in page-locked memory, read once the launch is over |
//!
//! # State of a thread
//!
//! A context is current per thread (`driver/context_stack.rs`). A thread that launches binds it once ([`Device::bind_thread`]); in any other
//! thread, each call pushes and pops it.
//!
//! # Example
//!
//! Planning an addition of two vectors, which needs neither a driver nor their memory:
//!
//! ```
//! use streamvm_ep::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layout = Layout::contiguous(Shape::new(&[1024])?);
//! let view = |at: usize, access| {
//!     // SAFETY: a plan reads and writes no element.
//!     unsafe { Operand::new(std::ptr::without_provenance_mut(at << 20), DType::F32, layout, access) }
//! };
//! let kernel = Kernel { op: Op::Add, device: DeviceKind::CUDA, dtype: DType::F32, run: |_| Ok(()) };
//! let mut operands = [view(1, Access::Read), view(2, Access::Read), view(3, Access::Write)];
//! let params = Params::default();
//! let launch = streamvm_cuda::plan(&KernelCall::new(kernel, &mut operands, 2, &params))?.expect("there are elements");
//! assert_eq!(launch.kernel.to_string(), "sv_add_f32");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod driver;
mod elementwise;
mod fused;
mod instance;
mod plan;
mod source;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod user_kernel;

#[cfg(feature = "cuda")]
use std::any::Any;
use std::sync::Arc;

pub use streamvm_ep::{CudaAbsent, CudaVersion, DriverError};
use streamvm_ep::{DType, Device, DeviceKind, Kernel, KernelRegistry, Op};
#[cfg(feature = "cuda")]
use streamvm_ep::{Graphs, Stream};

#[cfg(feature = "cuda")]
pub use device::{CudaDevice, CudaProducts};
pub use elementwise::kernel_ptx::kernel_ptx;
pub use elementwise::{
    CudaCodeError, CudaElementCode, CudaElementwise, CudaLaunch, CudaOp, CudaOpCall, CudaTensorCode,
};
pub use fused::{FUSED_NAME, FusedArguments, FusedLaunch, fused_ptx, plan_fused};
pub use instance::config::CudaConfig;
pub use plan::abi;
pub use plan::condition::{CONDITION_NAME, CONDITION_PTX, ConditionArguments, LoopState};
pub use plan::kernel_name::{KernelName, Module, NumberPlaces};
pub use plan::parts::SCRATCH_BYTES;
pub use plan::reduction_state::ReductionState;
pub use plan::{Launch, plan, plan_copy, plan_fill};
pub use source::{CompileError, CudaArgument, CudaGrid, Ptx};
#[cfg(feature = "cuda")]
pub use user_kernel::CudaFunction;

/// Registers a kernel for every supported op and dtype. Its host-side check does nothing, because planning a launch checks the operands.
pub fn register(registry: &mut KernelRegistry) {
    registry.run_registered_ops(DeviceKind::CUDA, elementwise::has_code, |_| Ok(()));
    for op in Op::ALL {
        for dtype in DType::ALL.into_iter().filter(|&dtype| op.supports(dtype)) {
            registry.register(Kernel { op, device: DeviceKind::CUDA, dtype, run: |_| Ok(()) });
        }
    }
}

/// Returns the interface with which callers queue several commands of a CUDA stream at once, as graphs and on lanes; `None` for a stream of another device.
/// [`Stream::execute`] uses it for the steps of a program; callers that queue steps themselves call it, too. See [`CommandSequence`](streamvm_ep::CommandSequence).
#[cfg(feature = "cuda")]
pub fn graphs_of<'s>(stream: &'s mut (dyn Stream + 'static)) -> Option<&'s mut dyn Graphs> {
    let stream: &mut dyn Any = stream;
    stream.downcast_mut::<stream::CudaStream>().map(|stream| -> &mut dyn Graphs { stream })
}

/// The CUDA devices of this machine for one engine, `cuda:0` first; see [`CudaDevice::open`].
///
/// # Errors
///
/// The reason why there is none.
#[cfg(feature = "cuda")]
pub fn open(config: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
    Ok(CudaDevice::open(config)?.into_iter().map(|device| -> Arc<dyn Device> { device }).collect())
}

/// The CUDA devices of this machine: none, because this build has no CUDA.
///
/// # Errors
///
/// [`CudaAbsent::NotBuilt`].
#[cfg(not(feature = "cuda"))]
pub fn open(_: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
    Err(CudaAbsent::NotBuilt)
}

//! Execution providers of streamvm: devices, streams, events, memory, kernels.
//!
//! An *execution provider* is the part of a device that an engine needs:
//!
//! * memory ([`Device::allocate`]),
//! * ordered queues of commands ([`Stream`]),
//! * marks in these queues ([`EventId`]), and
//! * kernels, looked up by (op, device kind, dtype) ([`KernelRegistry`]).
//!
//! This crate decides no order. It executes each command as given, or returns an error that says why it cannot. The only threads that it
//! starts compute parts of large CPU kernels, and run lanes of sequences ([`CpuConfig::threads`]).
//!
//! # Who checks what
//!
//! * [`infer`] computes the dtype and shape of an op's output before memory is allocated.
//! * A kernel checks its operands again (count, dtype, shape, alignment, overlap) and returns a [`KernelError`]: bad input never panics
//!   and never touches memory.
//! * The engine above guarantees the duties of [`Operand::new`] and [`Device::free`], which cannot be checked here: memory is alive,
//!   and commands that access it are ordered.
//!
//! # Example
//!
//! Two tensors of three `f32` are added on the CPU:
//!
//! ```
//! use streamvm_ep::*;
//!
//! # fn main() -> Result<(), Error> {
//! let devices = DeviceRegistry::with_cpu(CpuConfig::default());
//! let device = devices.get(DeviceId::cpu(0))?;
//! let mut stream = device.create_stream()?;
//! let kernels = KernelRegistry::builtin();
//!
//! // Memory for three vectors of three f32, each at a multiple of 64 bytes.
//! let region = device.allocate(MemoryKind::Device, 192)?;
//! let shape = Shape::new(&[3])?;
//! let vector = |at: usize, access| {
//!     let base = region.base().wrapping_add(at * 64);
//!     // SAFETY: the three vectors are within the region, which is zeroed, and do not overlap.
//!     unsafe { Operand::new(base, DType::F32, Layout::contiguous(shape), access) }
//! };
//! let mut operands = [
//!     vector(0, Access::ReadWrite),
//!     vector(1, Access::ReadWrite),
//!     vector(2, Access::Write),
//! ];
//! operands[0].slice_mut::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0]);
//! stream.fill(&mut operands[1], Scalar::from(0.5f32))?;
//!
//! let kernel = kernels.get(Op::Add, DeviceKind::Cpu, DType::F32)?;
//! let params = Params::default();
//! stream.launch(&mut KernelCall { kernel, operands: &mut operands, inputs: 2, params: &params })?;
//! stream.synchronize()?;
//!
//! assert_eq!(operands[2].slice::<f32>()?, [1.5, 2.5, 3.5]);
//! // SAFETY: the stream has completed all its commands, and the operands are not used again.
//! unsafe { device.free(region) };
//! # Ok(())
//! # }
//! ```

mod call;
mod cpu;
pub mod cuda;
mod errors;
pub mod faults;
mod names;
mod process;
mod provider;
pub mod races;
mod refcount;
mod registry;
mod sequence;
pub mod sim;
mod tensor;

pub use call::closure::{INLINE_BYTES, InlineFn};
pub use call::commands::{CommandCall, Commands, RestOfCommands};
pub use call::fn_context::{FnContext, MAX_WRITES, Reads, Writes};
pub use call::fused::{FusedGroup, FusedKernel, MOST_FUSED_VIEWS};
pub use call::graph::{BlockStart, GraphBlocks, GraphKey, GraphStart, LoopEnd, LoopsRun};
pub use call::kernel::{Kernel, KernelCall, KernelFn};
pub use call::kernel_registry::KernelRegistry;
pub use call::label::{Label, StepLabel};
pub use call::operand::{Access, Operand};
pub use call::raw::{RawCall, RawFn};
pub use call::step_note::StepNote;
#[doc(hidden)]
pub use cpu::leave_avx512_out;
pub use cpu::{CpuConfig, CpuDevice};
pub use errors::call_error::{CallError, FnError};
pub use errors::error::{Error, KernelError};
pub use names::device_id::{DeviceId, DeviceKind};
pub use names::event_id::EventId;
pub use names::memory_kind::MemoryKind;
pub use names::text::ParseError;
pub use process::fork::{Fork, PerProcess};
pub use provider::device::{Device, DeviceInfo, InstructionTime, LateCause, LateFailure, Priority, StreamUse};
pub use provider::event_pool::EventPool;
pub use provider::memory::{MemoryStats, Region};
pub use provider::stream::Stream;
pub use refcount::counted::{Counted, Recycle, Unique};
pub use refcount::pinned::{BorrowedItem, EitherRef, PinnedItem, PinnedRef, PinnedRefs};
pub use registry::device_registry::DeviceRegistry;
pub use sequence::{
    CommandSequence, CpuSequence, NotFinite, SequenceBranch, SequenceBuffer, SequenceCode, SequenceError, SequenceFlag,
    SequenceFunction, SequenceFusion, SequenceGroup, SequenceMemory, SequenceOperand, SequencePosition, SequenceStep,
    SequenceTime, SequenceWork, call_checking_finite,
};
pub use tensor::accuracy::{Accuracy, Samples};
pub use tensor::dtype::{DType, Element};
pub use tensor::error::{OpError, ShapeError};
pub use tensor::footprint::Footprint;
pub use tensor::infer::{check_source, infer, infer_alike};
pub use tensor::layout::Layout;
pub use tensor::op::Op;
pub use tensor::op_class::{ElementWork, OpClass};
pub use tensor::params::{Axes, Extra, Params};
pub use tensor::scalar::Scalar;
pub use tensor::shape::{MAX_RANK, Shape, broadcast_shapes};
pub use tensor::window::{Convolution, Pooling};

/// The 16-bit floats of the `half` crate.
pub use half::{bf16, f16};

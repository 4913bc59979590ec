//! The device interface of streamvm: devices, streams, events, memory, kernels, and the format of sequences.
//!
//! An *execution provider* is the part of a device that an engine needs:
//!
//! * memory ([`Device::allocate`]),
//! * ordered queues of commands ([`Stream`]),
//! * marks in these queues ([`EventId`]), and
//! * kernels, looked up by (op, device kind, dtype) ([`KernelRegistry`]).
//!
//! This crate is the interface: it has no device and no thread. CPU devices are in `streamvm-cpu`, their kernels in `streamvm-kernels`, CUDA devices in
//! `streamvm-cuda`, simulated ones in `streamvm-sim`. A device decides no order. It executes each command as given, or returns an error that says why it
//! cannot.
//!
//! # Who checks what
//!
//! * [`infer`] computes the dtype and shape of an op's output before memory is allocated.
//! * A kernel checks its operands again (count, dtype, shape, alignment, overlap) and returns a [`KernelError`]: bad input never panics
//!   and never touches memory. The checks are in [`backend::check`].
//! * The engine above guarantees the duties of [`Operand::new`] and [`Device::free`], which cannot be checked here: memory is alive,
//!   and commands that access it are ordered.
//!
//! # Example
//!
//! A kernel of the caller in the table of kernels, called over a view of three `f32` of the host (`streamvm-cpu` has an example with a device):
//!
//! ```
//! use streamvm_ep::*;
//!
//! # fn main() -> Result<(), Error> {
//! let mut kernels = KernelRegistry::empty();
//! let twice: KernelFn = |call| {
//!     let op = call.kernel.op;
//!     let refused = |source| KernelError::Operand { op, operand: 0, source: Box::new(source) };
//!     call.operands[0].slice_mut::<f32>().map_err(refused)?.iter_mut().for_each(|x| *x *= 2.0);
//!     Ok(())
//! };
//! kernels.register(Kernel { op: Op::Add, device: DeviceKind::CPU, dtype: DType::F32, run: twice });
//!
//! let mut memory = [1.0f32, 2.0, 3.0];
//! let layout = Layout::contiguous(Shape::new(&[3])?);
//! // SAFETY: the layout has the three elements, which nothing else uses while the operand exists.
//! let operand = unsafe { Operand::new(memory.as_mut_ptr().cast(), DType::F32, layout, Access::ReadWrite) };
//! let kernel = kernels.get(Op::Add, DeviceKind::CPU, DType::F32)?;
//! (kernel.run)(&mut KernelCall::new(kernel, &mut [operand], 1, &Params::default()))?;
//! assert_eq!(memory, [2.0, 4.0, 6.0]);
//! # Ok(())
//! # }
//! ```

pub mod backend;
mod call;
mod errors;
mod names;
mod process;
mod provider;
mod refcount;
mod sequence;
mod tensor;

pub use call::closure::{INLINE_BYTES, InlineFn};
pub use call::fn_context::{FnContext, MAX_WRITES, Reads, Writes};
pub use call::kernel::{Kernel, KernelCall, KernelFn};
pub use call::kernel_registry::KernelRegistry;
pub use call::label::{Label, ProgramStep};
pub use call::op_states::OpStates;
pub use call::operand::{Access, Operand};
pub use call::operation::{Operation, Unfinished};
pub use call::prepared::{Executes, Prepared, RestOfSegment, SegmentCall, SegmentRun, SequenceTime};
pub use call::raw::{RawCall, RawFn};
pub use call::registered::{ElementwiseOp, OpCall, TensorOp};
pub use call::step_note::StepNote;
pub use call::tile_function::{TileElement, TileFunction};
pub use errors::call_error::{CallError, FnError};
pub use errors::cuda_absent::{CudaAbsent, CudaVersion};
pub use errors::driver_error::DriverError;
pub use errors::error::{Error, KernelError};
pub use errors::sequence_error::SequenceError;
pub use names::actor_id::ActorId;
pub use names::device_id::DeviceId;
pub use names::device_kind::{DeviceKind, Fusion, KindError, KindInfo, Lanes, RunBy};
pub use names::event_id::EventId;
pub use names::memory_kind::MemoryKind;
pub use names::scope::Scope;
pub use names::scopes::Scopes;
pub use names::site::{Site, SiteScope, scope};
pub use names::text::{ParseError, error_chain};
pub use process::fork::{Fork, PerProcess};
pub use provider::accounts::Accounts;
pub use provider::device::{Device, DeviceInfo, InstructionTime, LateCause, LateFailure, Priority, StreamUse};
pub use provider::device_registry::DeviceRegistry;
pub use provider::event_pool::EventPool;
pub use provider::memory::{MemoryStats, Region};
pub use provider::stream::{OneByOne, Stream};
pub use refcount::counted::{Counted, Recycle, Unique};
pub use refcount::pinned::{BorrowedItem, EitherRef, PinnedItem, PinnedRef, PinnedRefs};
pub use sequence::commands::{Commands, Graphs};
pub use sequence::fused_group::{FusedGroup, FusedKernel, MOST_FUSED_VIEWS};
pub use sequence::graph::{BlockStart, GraphBlocks, GraphKey, GraphOwner, GraphStart, LoopEnd, LoopsRun};
pub use sequence::{
    CommandSequence, DeviceCode, ExecuteOnHost, HostCode, LentStream, MakeKernel, NotFinite, OtherSteps, OtherWork,
    Segment, SegmentOptions, SequenceBranch, SequenceBuffer, SequenceCode, SequenceFlag, SequenceFunction,
    SequenceGroup, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork, StreamLender, call_checking_finite,
};
pub use tensor::accuracy::{Accuracy, Samples};
pub use tensor::dtype::{DType, Element};
pub use tensor::error::{OpError, ShapeError};
pub use tensor::footprint::Footprint;
pub use tensor::infer::{check_source, infer, infer_alike};
pub use tensor::layout::Layout;
pub use tensor::numbers::Numbers;
pub use tensor::op::Op;
pub use tensor::op_class::{ElementWork, OpClass};
pub use tensor::params::{Axes, Extra, Params};
pub use tensor::registered_op::{RegisterError, RegisteredOp};
pub use tensor::scalar::Scalar;
pub use tensor::shape::{MAX_RANK, Shape, broadcast_shapes};
pub use tensor::window::{Convolution, Pooling};

/// The 16-bit floats of the `half` crate.
pub use half::{bf16, f16};

//! Execution providers of streamvm: devices, streams, events, memory, kernels.
//!
//! An *execution provider* is what an engine needs from a kind of device and nothing more: memory
//! ([`Device::allocate`]), ordered queues of commands ([`Stream`]), marks in them ([`EventId`]) and
//! kernels found by (op, device kind, dtype) ([`KernelRegistry`]). This crate has no threads and
//! decides no order; it does what it is told, checks that it can be done, and says why if not.
//!
//! # Who checks what
//!
//! * [`infer`] says which dtype and shape an op gives, before anything is allocated.
//! * A kernel checks its operands again (count, dtype, shape, alignment, overlap) and returns a
//!   [`KernelError`]: bad input never panics and never touches memory.
//! * What cannot be checked are the duties of [`Operand::new`] and [`Device::free`]: that memory is
//!   alive, and that commands which touch it are ordered. An engine above keeps those.
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
//! // Room for three vectors of three f32, each at a multiple of 64 bytes.
//! let region = device.allocate(MemoryKind::Device, 192)?;
//! let shape = Shape::new(&[3])?;
//! let vector = |at: usize, access| {
//!     let base = region.base().wrapping_add(at * 64);
//!     // SAFETY: the three vectors lie inside the region, which is zeroed, and do not overlap.
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
//! // SAFETY: the stream has passed all its commands and the operands are not used again.
//! unsafe { device.free(region) };
//! # Ok(())
//! # }
//! ```

mod accounts;
mod check;
mod closure;
mod counted;
mod cpu;
pub mod cuda;
mod device;
mod dtype;
mod error;
mod event;
pub mod faults;
mod fn_context;
mod footprint;
mod hoard;
mod infer;
mod kernel;
mod kernel_registry;
mod label;
mod layout;
mod lease;
mod memory;
mod op;
mod operand;
mod params;
pub mod races;
mod raw;
mod registry;
mod scalar;
mod shape;
pub mod sim;
mod stream;
mod sync;

pub use closure::{FnError, INLINE_BYTES, InlineFn};
pub use counted::{Counted, Last, Own};
pub use cpu::{CpuConfig, CpuDevice};
pub use device::{Device, DeviceId, DeviceInfo, DeviceKind, LateCause, LateFailure, Priority, Ran};
pub use dtype::{DType, Element};
pub use error::{CallError, Error, KernelError, OpError, ParseError, ShapeError};
pub use event::{EventId, EventPool};
pub use fn_context::{FnContext, MAX_WRITES, Reads, Writes};
pub use footprint::Footprint;
pub use hoard::{Held, Hoard, Kept, Pair, Shown};
pub use infer::{check_source, infer, infer_alike, supported_dtypes, supports};
pub use kernel::{Kernel, KernelCall, KernelFn};
pub use kernel_registry::KernelRegistry;
pub use label::Label;
pub use layout::Layout;
pub use memory::{MemoryKind, MemoryStats, Region};
pub use op::Op;
pub use operand::{Access, Operand};
pub use params::{Axes, Extra, Params};
pub use raw::{RawCall, RawFn};
pub use registry::DeviceRegistry;
pub use scalar::Scalar;
pub use shape::{MAX_RANK, Shape, broadcast_shapes};
pub use stream::Stream;

/// The 16-bit floats, as the `half` crate has them.
pub use half::{bf16, f16};

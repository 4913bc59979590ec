//! The CPU as a device: aligned memory, streams that run each command in the calling thread, and sequences of steps that run as one call.
//!
//! Threads of [`streamvm_kernels`] help with large kernels, and run lanes of sequences ([`CpuConfig::threads`]).
//!
//! # Example
//!
//! Two tensors of three `f32` are added on the CPU:
//!
//! ```
//! use streamvm_cpu::{CpuConfig, CpuDevice};
//! use streamvm_ep::*;
//!
//! # fn main() -> Result<(), Error> {
//! let device = CpuDevice::new(0, CpuConfig::default());
//! let mut stream = device.create_stream()?;
//! let kernels = streamvm_kernels::builtin();
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
//! let kernel = kernels.get(Op::Add, DeviceKind::CPU, DType::F32)?;
//! let params = Params::default();
//! stream.launch(&mut KernelCall::new(kernel, &mut operands, 2, &params))?;
//! stream.synchronize()?;
//!
//! assert_eq!(operands[2].slice::<f32>()?, [1.5, 2.5, 3.5]);
//! // SAFETY: the stream has completed all its commands, and the operands are not used again.
//! unsafe { device.free(region) };
//! # Ok(())
//! # }
//! ```

mod device;
#[cfg(test)]
mod registry_tests;
mod sequence;
mod stream;

pub use device::{CpuConfig, CpuDevice, devices};
pub use sequence::CpuSequence;

//! The CPU as a device: aligned memory, streams that run each command in the calling thread, and the kernels.
//!
//! Layer: uses `names`, `process`, `tensor`, `errors`, `call`, `provider`; is used by `sim`, `cuda`, `registry`.
//!
//! Main types: [`CpuDevice`], [`CpuConfig`], [`CpuSequence`].

mod device;
mod kernels;
mod sequence;
mod stream;
mod workers;

pub use device::{CpuConfig, CpuDevice};
pub(crate) use kernels::{copy, fill, register};
pub use sequence::{
    CpuSequence, SequenceError, SequenceGroup, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork,
};

//! Errors of devices, streams, operands, kernels and callers' functions, as data.
//!
//! Layer: uses `names`, `tensor`; is used by `call`, `provider`, `sequence`.
//!
//! Main types: [`Error`](error::Error), [`KernelError`](error::KernelError), [`CallError`](call_error::CallError),
//! [`CudaAbsent`](cuda_absent::CudaAbsent), [`DriverError`](driver_error::DriverError), [`SequenceError`](sequence_error::SequenceError).

pub(crate) mod call_error;
pub(crate) mod cuda_absent;
pub(crate) mod driver_error;
pub(crate) mod error;
pub(crate) mod sequence_error;

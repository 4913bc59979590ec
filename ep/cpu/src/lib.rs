//! The CPU as a device: aligned memory, streams that run each command in the calling thread, and the kernels.
//!
//! Layer: uses `names`, `process`, `tensor`, `errors`, `call`, `provider`; is used by `sim`, `cuda`, `sequence`, `registry`.
//!
//! Main types: [`CpuDevice`], [`CpuConfig`].

mod device;
mod kernels;
mod patience;
mod stream;
mod workers;

pub use device::{CpuConfig, CpuDevice};
pub(crate) use kernels::{chain, copy, fill, is_own, parallel, register};
pub(crate) use patience::Patience;
#[cfg(test)]
pub(crate) use workers::set_threads;
pub(crate) use workers::split;

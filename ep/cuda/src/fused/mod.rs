//! Fused kernels: elementwise steps of a program as one CUDA kernel, made when the program is compiled.
//!
//! Layer: uses `driver`; is used by `stream`.
//!
//! | file | idea |
//! |---|---|
//! | `source` | the CUDA C++ of a group: a pure function of its steps |
//! | `arguments` | the parameter of such a kernel |
//! | `plan` | the launch over given views |
//! | `kernels` | the kernels of one device: compiled by NVRTC, found again by their source |
//!
//! The source has no shapes, strides or addresses: those are in the parameter. So one kernel serves programs of all shapes. Its functions are those of the
//! shipped kernels (`kernels/fused.cuh`), and neither is compiled with contraction, so the results have the same bits.

mod arguments;
#[cfg(feature = "cuda")]
pub(super) mod kernels;
mod plan;
mod source;

pub use arguments::FusedArguments;
#[cfg(feature = "cuda")]
pub(super) use plan::plan_views;
pub use plan::{FusedLaunch, plan_fused};
pub use source::{FUSED_NAME, fused_headers, fused_source};

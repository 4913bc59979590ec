//! Elementwise kernels, written as PTX when they are needed: one eager op, a copy, a fill, or fused steps of a program.
//!
//! Layer: uses `plan` and `source`; is used by `fused`, `instance` and `stream`.
//!
//! | file | idea |
//! |---|---|
//! | `functions` | what each op computes for one element: functions that ship as PTX, and how one is pasted into a kernel |
//! | `element_code` | a caller's function for one element, of a registered op |
//! | `steps` | the steps of a kernel, with the functions that they use: an eager op is one step |
//! | `kernel_ptx` | the PTX of a kernel by its name: written, or cut out of what ships |
//! | `tensor_code` | a caller's whole kernel, of a registered op over tensors |
//! | `entry` | the rest of the kernel: it walks the elements, loads them, and stores the results |
//!
//! Every step rounds by itself, because the functions are compiled without contraction and a driver's compiler contracts no operation that says how it rounds. So
//! fused steps have the bits of steps that run one by one.

mod element_code;
mod entry;
mod functions;
pub(crate) mod kernel_ptx;
mod steps;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without CUDA nothing is launched"))]
mod tensor_code;

pub use element_code::{CudaCodeError, CudaElementCode, CudaElementwise};
pub(crate) use entry::write;
pub(crate) use functions::{declarations, with_elements};
pub(crate) use steps::{Parameter, Steps};
pub use tensor_code::{CudaLaunch, CudaOp, CudaOpCall, CudaTensorCode};
pub(crate) use tensor_code::{has_code, tensor_code};

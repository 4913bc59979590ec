//! CUDA: what our kernels are given, and how a call becomes a launch of one of them.
//!
//! Nothing here needs a driver. A [`Launch`] is one kernel with its [`Arguments`](abi::Arguments) and its grid;
//! [`FunctionName`] says in which [`Module`] of PTX the kernel is.

pub mod abi;
mod function;
mod plan;

pub use function::{FunctionName, Module};
pub use plan::Launch;

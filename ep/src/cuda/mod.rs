//! CUDA: what our kernels are given, and how a call becomes a launch of one of them.
//!
//! Nothing here needs a driver. [`plan()`] checks a call as the CPU kernels do, and gives a [`Launch`]: one kernel with its
//! [`Arguments`](abi::Arguments) and its grid. [`FunctionName`] says in which [`Module`] of PTX the kernel is. The PTX is made
//! from the sources in `kernels/` by `make ptx`.

pub mod abi;
mod axes;
mod function;
mod plan;
mod plan_reduce;

pub use function::{FunctionName, Module};
pub use plan::{Launch, plan, plan_copy, plan_fill};

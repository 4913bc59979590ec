//! A CUDA driver for tests: takes libcuda's place where there is no GPU.
//!
//! The library exports the calls of the CUDA driver that streamvm makes and does what they say, on threads of the host:
//! every stream has one, runs its commands in order, and each of them as late as a seed says. Memory of a device lies
//! where the host cannot reach it. Kernels are streamvm's own, known by their names and computed by its kernels for the
//! CPU. Nothing here knows streamvm's engine: it is driven through cudarc, as a GPU is.
//!
//! # What it checks
//!
//! What is wrong is a *finding*: a line on stderr, one in the file that `STREAMVM_STANDIN_FINDINGS` names, and one of
//! [`Standin::findings`]. Handles that are gone or never were; calls in no context or the wrong one; the null stream;
//! waits for events that nothing has recorded; memory that is freed, freed twice, exceeded, pageable, or of a device out of
//! reach; the sources of queued copies changed; accesses that nothing orders, by the race detector of `streamvm-ep`; memory
//! that goes back before its last use is known to be over; what is alive when its context goes.
//!
//! # How it is set up
//!
//! By a text of settings with semicolons between, from `STREAMVM_STANDIN` or [`Standin::load`], such as
//! `devices=2;memory=64M;seed=7`. `fail=cuMemAlloc_v2:3:OUT_OF_MEMORY`, `illegal=5` (the fifth kernel ends its context)
//! and `slow=2:50` (the second takes 50 ms longer) are faults on demand.
//!
//! # How it is loaded
//!
//! The library calls itself `libcuda.so`, the first name that cudarc asks for, so a test loads it by its path and
//! everything after finds it: [`Standin::load`]. A process that a test starts finds it by `LD_LIBRARY_PATH`:
//! [`Standin::folder`]. [`Standin::load_cublas`] loads a library in cuBLAS's place as well, which hands its calls on to here.
//!
//! ```
//! use streamvm_standin::Standin;
//!
//! let driver = Standin::load("devices=2");
//! // … what uses cudarc …
//! assert_eq!(driver.findings(), "");
//! ```

#![allow(non_snake_case, reason = "the names are those of the CUDA driver")]

pub mod api;
mod code;
mod command;
mod config;
mod context;
mod cublas;
mod driver;
mod entry;
mod event;
mod faults;
mod findings;
mod handles;
mod harness;
mod kernel;
mod memory;
mod order;
mod out;
mod random;
mod stream;
#[cfg(test)]
mod tests;

pub use harness::{Held, Standin};
pub use kernel::{EMPTY, EMPTY_PTX};
pub use out::Out;

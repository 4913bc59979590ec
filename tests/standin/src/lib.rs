//! A CUDA driver for tests, which replaces libcuda where there is no GPU.
//!
//! The library exports the calls of the CUDA driver that streamvm makes, and runs them on threads of the host: every stream has a thread,
//! which runs its commands in order, each after a delay drawn from a seed. Device memory has addresses that the host cannot access. Kernels
//! are streamvm's own, and an interpreter runs their PTX (`kernels/`, `tests/ptx`), with the grid and blocks of the launch. The stand-in does not depend on
//! streamvm's engine, which drives it through cudarc like a GPU.
//!
//! # What it checks
//!
//! A defect of the program is a *finding*: a line on stderr, a line in the file that `STREAMVM_STANDIN_FINDINGS` names, and a line of
//! [`Standin::findings`]. These are findings:
//!
//! * handles that were destroyed or never existed;
//! * calls in no context or in the wrong one, and uses of the null stream;
//! * waits for events without a record;
//! * memory that is freed, freed twice, exceeded, pageable, or of a device without peer access;
//! * changed sources of queued copies;
//! * unordered accesses, by the race detector of `streamvm-ep`;
//! * memory that is freed before the host has observed that its last use has passed;
//! * objects that are alive when their context is destroyed;
//! * calls that the capture of a graph forbids, and captures that are not ended as they were begun;
//! * what a kernel does that its arguments do not declare, and what the interpreter finds: accesses out of bounds and misaligned ones, reads of what was
//!   not written, races of threads, divergent barriers, and output that was not written; and PTX that the interpreter
//!   does not know;
//! * conditions and nodes of graphs that do not belong together, and nodes that their stream does not come after.
//!
//! # How it is set up
//!
//! By a text of settings, separated by semicolons, from `STREAMVM_STANDIN` or [`Standin::load`], such as `devices=2;memory=64M;seed=7`. The
//! settings `fail=cuMemAlloc_v2:3:OUT_OF_MEMORY`, `illegal=5` (the fifth kernel ends its context) and `slow=2:50` (the second takes 50 ms
//! longer) are faults on demand.
//!
//! # How it is loaded
//!
//! The library has the name `libcuda.so`, the first name that cudarc looks for. So a test that loads it by its path, with
//! [`Standin::load`], makes all later code find it. A process that a test starts finds it by `LD_LIBRARY_PATH`: [`Standin::folder`].
//! [`Standin::load_cublas`] also loads a library in place of cuBLAS, which forwards its calls to this one.
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
mod commands;
mod driver;
mod harness;
mod kernels;
mod memory;
mod objects;
#[cfg(test)]
mod tests;
mod values;

pub use harness::{Held, Standin};
pub use kernels::{EMPTY, EMPTY_PTX};
pub use values::out::Out;

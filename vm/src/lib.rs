//! streamvm: an asynchronous execution engine for accelerators.
//!
//! A program issues operations in plain program order; streamvm runs them on typed streams across devices, inserts
//! exactly the waits that the data needs, reuses memory across streams safely, and tells every waiter which operation
//! failed, and at which line of the program.
//!
//! ```
//! use streamvm::{DeviceId, Vm};
//!
//! # fn main() -> Result<(), streamvm::Error> {
//! let vm = Vm::builder().build()?;
//! let x = vm.from_slice(&[1.0f32, -2.0, 3.0, -4.0], &[2, 2])?;
//! let on_device = x.to(DeviceId::cpu(0))?; // host-to-device stream
//! let h = on_device.relu()?; // compute stream, ordered after the copy
//! let y = (&h + &on_device)?;
//! assert_eq!(y.to_vec::<f32>()?, [2.0, -2.0, 6.0, -4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! The same with an explicit list, which can be printed before it runs:
//!
//! ```
//! use streamvm::{DeviceId, InstructionsBuilder, Vm};
//!
//! # fn main() -> Result<(), streamvm::Error> {
//! let vm = Vm::builder().build()?;
//! let x = vm.from_slice(&[1.0f32, 2.0], &[2])?;
//! let mut b = InstructionsBuilder::new();
//! let on_device = b.copy(&x, DeviceId::cpu(0))?;
//! let total = b.sum(&on_device, &[])?;
//! let list = b.finish();
//! println!("{list}");
//! let ticket = vm.submit(list)?;
//! ticket.wait()?;
//! assert_eq!(total.to_vec::<f32>()?, [3.0]);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

/// Runs the programs of README.md as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Runs the programs of the page about CUDA as doctests; they end without an error with a GPU and without.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/cuda.md")]
struct CudaPage;

/// Runs the programs of the pages about programs as doctests. One of them needs a simulated device.
#[cfg(all(doctest, feature = "sim"))]
#[doc = include_str!("../../docs/programs.md")]
#[doc = include_str!("../../docs/compiling.md")]
struct ProgramsPage;

/// Runs the programs of the pages about functions and critical sections as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/functions.md")]
#[doc = include_str!("../../docs/critical-sections.md")]
struct FunctionsPage;

/// Runs the programs of the page about lists as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/lists.md")]
struct ListsPage;

/// Runs the programs of the page for those who operate a service as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/operating.md")]
struct OperatingPage;

/// Runs the program of the page about traces as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../docs/observe.md")]
struct ObservePage;

/// Runs the program of the page about sizes with bounds as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../docs/bounded-sizes.md")]
struct BoundedSizesPage;

/// Runs the programs of the page about ops of one's own as doctests.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/own-ops.md")]
struct OwnOpsPage;

/// Runs the program of the page about kernels and devices as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../docs/extending.md")]
struct ExtendingPage;

mod builder;
mod critical_section;
#[cfg(feature = "cuda")]
mod cuda;
mod dispatch;
mod engine;
pub mod ep;
mod execute;
mod functions;
#[cfg(all(test, target_os = "linux", not(any(loom, shuttle))))]
mod growth_tests;
mod lent;
mod mode;
mod new_tensors;
mod observe;
#[cfg(all(test, not(any(loom, shuttle))))]
mod pool_tests;
mod program_cache;
mod programs;
mod progress;
mod queue;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod stats;
mod submit;
mod sync;
mod tasks;
mod ticket;
mod trace_config;
mod vm;

pub use builder::VmBuilder;
pub use critical_section::CriticalSection;
pub use engine::profile::Profile;
pub use engine::worker_sets::{Pool, PoolConfig};
pub use functions::{Bulk, OnComplete, Operator, Pusher};
pub use lent::Lent;
pub use mode::Mode;
pub use observe::stall_report::StallReport;
pub use programs::{Executable, Fetches, Jit, StepTime, Watch, WatchedStep};
pub use stats::Stats;
pub use ticket::Ticket;
pub use trace_config::TraceConfig;
pub use vm::Vm;

/// Reports of an engine: its counters, its profile, and the instructions that block it.
pub mod report {
    pub use crate::engine::profile::{OpProfile, Profile, Times, WorkerProfile};
    pub use crate::observe::stall_report::{HeldSection, StallReport, StallState, StalledInstruction};
    pub use crate::program_cache::cache::ProgramCacheStats;
    pub use crate::stats::{PoolStats, Stats};
    pub use streamvm_instructions::SyncCounts;
}

pub use streamvm_ep::{
    Access, Axes, Convolution, DType, DeviceId, DeviceInfo, DeviceKind, Element, ElementwiseOp, FnContext, FnError,
    Layout, MemoryKind, Op, OpCall, Params, Pooling, Priority, ProgramStep, Scalar, Scope, Shape, Site, SiteScope,
    TensorOp, scope,
};
/// Tensors, lists and soft sync: the layer for those who write engines and passes over lists.
pub use streamvm_instructions as instructions;
pub use streamvm_instructions::{
    AsInput, BuildError, Cause, Critical, Error, Event, Failure, Generator, Input, InstructionList,
    InstructionsBuilder, Lane, LanePool, Passed, Place, PlanOptions, PlannedList, ProgramError, Reading, Section,
    Tensor, TimeLimit, Use, Var, plan,
};
/// Programs: recorded once, compiled, run many times.
pub use streamvm_program as program;
/// Streams, timelines, the capability table and the allocator.
pub use streamvm_stream as stream;
pub use streamvm_stream::{StreamKey, StreamType};

/// The 16-bit floats of the `half` crate, reexported so that a program needs no dependency of a matching version.
///
/// ```
/// use streamvm::{DType, DeviceId, Vm, bf16, f16};
///
/// # fn main() -> Result<(), streamvm::Error> {
/// let vm = Vm::builder().build()?;
/// let x = vm.from_slice(&[0.1, 1024.0].map(f16::from_f32), &[2])?.to(DeviceId::cpu(0))?;
/// let y = (&x * &x)?; // in f32, rounded once
/// assert_eq!(y.to_vec::<f16>()?, [0.009994507, f32::INFINITY].map(f16::from_f32));
/// assert_eq!(x.cast(DType::BF16)?.to_vec::<bf16>()?, [0.1, 1024.0].map(bf16::from_f32));
/// # Ok(())
/// # }
/// ```
pub use streamvm_ep::{bf16, f16};

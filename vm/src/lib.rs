//! streamvm: an asynchronous execution engine for accelerators.
//!
//! A program issues operations in plain program order; streamvm runs them on typed streams across devices, inserts
//! exactly the waits that the data needs, reuses memory across streams safely, and hands every failure back to the
//! operation that caused it.
//!
//! ```
//! use streamvm::{DeviceId, Vm};
//!
//! # fn main() -> Result<(), streamvm::Error> {
//! let vm = Vm::builder().build()?;
//! let x = vm.tensor(&[1.0f32, -2.0, 3.0, -4.0], &[2, 2])?;
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
//! let x = vm.tensor(&[1.0f32, 2.0], &[2])?;
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

/// The programs of the README run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The programs of the page about CUDA run: to their end with a GPU, and without.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../docs/cuda.md")]
struct CudaPage;

/// The programs of the page about functions run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/functions.md")]
struct FunctionsPage;

mod beds;
mod berth;
mod callbacks;
mod cells;
mod claims;
mod commit;
mod commit_row;
mod commit_unordered;
mod completion;
mod config;
mod context;
mod context_shared;
mod context_thread;
mod cuda;
mod engine_kind;
mod engine_thread;
mod entry;
mod failures;
mod first;
mod flight;
mod fork;
mod handle;
mod help;
mod idle;
mod inbox;
mod intake;
mod job;
mod kept;
mod ladder;
mod launch;
mod memory;
mod moments;
mod monitor;
mod outbox;
mod pool;
#[cfg(all(test, not(any(loom, shuttle))))]
mod pool_tests;
mod prepare;
mod profile;
mod progress;
mod push;
mod releases;
mod ring;
mod room;
mod run;
mod runner;
mod scheduler;
mod shared;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod simulated;
mod singles;
mod site;
mod sleep;
mod slot;
mod spin;
mod stall;
mod stall_report;
mod state;
mod stats;
mod submit;
mod sync;
mod tally;
mod threads;
mod ticket;
mod trace;
mod variables;
mod view;
mod vm;
mod wait;
mod waiters;

pub use config::{Mode, VmBuilder};
pub use engine_kind::EngineKind;
pub use entry::MAX_STREAMS;
pub use profile::{OpProfile, Profile, Times, WorkerProfile};
pub use push::{Bulk, OnComplete, Operator, Pool, PoolConfig, Pusher};
pub use stall_report::{StallReport, StallState, StalledInstruction};
pub use stats::{PoolStats, Stats};
pub use ticket::Ticket;
pub use vm::Vm;

pub use streamvm_ep as ep;
pub use streamvm_ep::faults::FaultPlan;
pub use streamvm_ep::races::Finding;
pub use streamvm_ep::{
    Access, Axes, DType, DeviceId, DeviceInfo, DeviceKind, Element, Extra, FnContext, FnError, Layout, MemoryKind, Op,
    Params, Priority, RawCall, Scalar, Shape,
};
pub use streamvm_instructions as instructions;
pub use streamvm_instructions::{
    BuildError, Cause, Deadline, DeadlineGuard, Declared, Error, Event, Failure, Generator, HeldUse, InstructionList,
    InstructionsBuilder, LaneGuard, OwnUse, ParseListError, Passed, Place, PlanOptions, PlannedList, STAGING_PIECE,
    SoftSyncMode, SyncCounts, Tensor, Use, Uses, Var, current_lane, deadline, lane, plan,
};
pub use streamvm_stream as stream;
pub use streamvm_stream::{Capabilities, StreamKey, StreamType};

/// The 16-bit floats of the `half` crate; nobody has to match its version.
///
/// ```
/// use streamvm::{DType, DeviceId, Vm, bf16, f16};
///
/// # fn main() -> Result<(), streamvm::Error> {
/// let vm = Vm::builder().build()?;
/// let x = vm.tensor(&[0.1, 1024.0].map(f16::from_f32), &[2])?.to(DeviceId::cpu(0))?;
/// let y = (&x * &x)?; // in f32, rounded once
/// assert_eq!(y.to_vec::<f16>()?, [0.009994507, f32::INFINITY].map(f16::from_f32));
/// assert_eq!(x.cast(DType::BF16)?.to_vec::<bf16>()?, [0.1, 1024.0].map(bf16::from_f32));
/// # Ok(())
/// # }
/// ```
pub use streamvm_ep::{bf16, f16};

//! Workloads: work that a program gives to the engine, through its public interface.
//!
//! Layer: uses `harness`; is used by `parts`, `floors`, `growth` and `catalogue`.
//!
//! Main types: a [`Graph`](graph::Graph) emits operations over variables; [`random_ops`](generate::random_ops) gives the operations of
//! the random workload; each other module is one workload.
//!
//! Each run has its own engine, warms it up, and checks afterwards that the work was done.

pub mod beside;
pub mod generate;
pub mod graph;
pub mod idle;
pub mod latency;
pub mod memory;
pub mod overlap;
pub mod program_functions;
pub mod programs;
pub mod small_op;
pub mod threads;
pub mod waits;
pub mod workers;

use streamvm::DeviceId;

/// The device of all workloads.
pub(crate) const DEVICE: DeviceId = DeviceId::cpu(0);

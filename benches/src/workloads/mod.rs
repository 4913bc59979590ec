//! Workloads: what a program asks of the engine, through its public interface.
//!
//! Each run gets an engine of its own, warms it up, and checks afterwards that the work was really done.

pub mod graph;
pub mod idle;
pub mod latency;
pub mod memory;
pub mod small_op;
pub mod threads;
pub mod waits;
pub mod workers;

use streamvm::DeviceId;

/// Where everything runs.
pub(crate) const DEVICE: DeviceId = DeviceId::cpu(0);

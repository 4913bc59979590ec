//! Floors: the least that any engine must spend on a workload, measured beside the workload.
//!
//! Layer: uses `harness`, `workloads` and `parts`, whose sizes it shares; is used by `catalogue`.
//!
//! Main types: [`Bookkeeping`](bookkeeping::Bookkeeping) is the bare analysis of dependences; each other module is the floor of the
//! workload or part of the same name. [`Machine`](machine::Machine) says on what machine they were measured.

pub mod bookkeeping;
pub mod graph;
pub mod machine;
pub mod malloc;
pub mod overlap;
pub mod small_op;
pub mod soft_sync;
pub mod threads;

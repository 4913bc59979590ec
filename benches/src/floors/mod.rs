//! Floors: the least that any engine spends on a workload, measured beside it.

pub mod graph;
pub mod malloc;
pub mod small_op;
pub mod soft_sync;
pub mod threads;

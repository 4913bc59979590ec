//! The objects of the driver: contexts, streams and the commands on them, events, graphs and handles of cuBLAS. They hold state; what needs
//! the whole driver is in `driver` and `commands`.
//!
//! Layer: uses `values`, `memory` and `kernels`; is used by `driver`, `commands` and `api`.

pub(crate) mod capture;
pub(crate) mod collective;
pub(crate) mod command;
pub(crate) mod context;
pub(crate) mod cublas;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod stream;

//! Commands from the arguments of a call to the queue of a stream: checked, told to the race detector, and queued by themselves or as nodes of a graph.
//!
//! Layer: uses `values`, `memory`, `kernels`, `objects` and `driver`; is used by `api`.

pub(crate) mod collective;
pub(crate) mod copy;
pub(crate) mod graph;
pub(crate) mod kernel;
mod prepared;

//! The driver of the process: its state and the checks that calls share (`state`), the way into a call (`entry`), and the run of commands on threads of
//! streams (`run`).
//!
//! Layer: uses `values`, `memory`, `kernels` and `objects`; is used by `commands` and `api`.

pub(crate) mod entry;
pub(crate) mod ranges;
pub(crate) mod run;
mod state;

pub(crate) use state::{Driver, Function, Module};

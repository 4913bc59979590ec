//! Harness of the cross-crate suites of streamvm.
//!
//! The suites lie in `tests/`, one behaviour a file, and use only what users of the crate `streamvm` can. What they
//! share is here:
//!
//! * [`Gate`]: holds a function inside the engine until the test lets it go, so that no test relies on sleeping;
//! * [`within`] and [`block_on`]: give up on what should end and does not, so that a hang is a failure;
//! * [`program`]: random programs, run on any engine and compared with the inline one.

mod gate;
mod patience;
pub mod program;
mod setup;

pub use gate::{ClosedGate, Gate};
pub use patience::{PATIENCE, block_on, poll_once, until, within};
pub use setup::{CPU, failure_of, list, on_device, submit, used_bytes};

//! Harness of the cross-crate suites of streamvm.
//!
//! The suites lie in `tests/`, one behaviour a file, and use only what users of the crate `streamvm` can. Files of one
//! subject are one program, which is linked once; a file that others would disturb is one by itself: environment, log,
//! threads, how it ends. What they share is here:
//!
//! * [`Gate`]: holds a function inside the engine until the test lets it go, so that no test relies on sleeping;
//! * [`within`] and [`block_on`]: give up on what should end and does not, so that a hang is a failure;
//! * [`conformance`]: what every execution provider must do, and broken ones that must be rejected;
//! * [`corpus`]: what every text and file that is read is held to, for fuzzing and for replaying what it found;
//! * [`faults`]: every fault at every kind of instruction, judged by what is promised;
//! * [`lists`]: random instruction lists on devices of every kind at once, which must lead nobody to a wrong address;
//! * [`load`]: a mixed load for programs that run for minutes, and what is measured while it runs;
//! * [`Notes`]: an engine that notes what it is given, and runs nothing;
//! * [`hazards`]: programs for devices with one thing wrong, which the race detector must find;
//! * [`program`]: random programs, run on any engine and compared with the inline one.

pub mod conformance;
pub mod corpus;
mod engines;
pub mod faults;
mod gate;
pub mod hazards;
mod held;
pub mod lists;
pub mod load;
mod logged;
mod many;
mod notes;
mod patience;
mod process;
pub mod program;
mod random;
mod setup;
mod written;

pub use engines::{builders, engines, threaded, with_streams};
pub use gate::{ClosedGate, Gate};
pub use held::{Rule, function_waits_for_a_kernel, kernel_waits_for_a_function};
pub use logged::logged;
pub use many::{HANG, each_seed};
pub use notes::{Notes, Site};
pub use patience::{PATIENCE, block_on, poll_once, until, within, within_time};
pub use process::run_alone;
pub use random::Random;
pub use setup::{CPU, failure_of, list, no_races, on_device, submit, used_bytes};
pub use written::Text;

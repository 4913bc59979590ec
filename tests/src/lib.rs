//! Harness of the cross-crate suites of streamvm.
//!
//! The suites are in `tests/`, with one behaviour per file, and use only the public interface of the crate `streamvm`. Most of
//! them form one program, because each program links the whole engine. A program by itself is what needs the process for itself: tests that
//! count its threads or allocations, that fork it, or that load a driver with other settings. The suites share these parts:
//!
//! * [`Gate`]: holds a function inside the engine until the test opens it, so that no test relies on sleeping;
//! * [`within`] and [`block_on`]: time limits, so that a hang fails the test;
//! * [`compiled`]: drawn programs, compiled and compared with eager calls;
//! * [`conformance`]: the requirements on every execution provider, and broken providers that must be rejected;
//! * [`corpus`]: properties of every text and file that is read, for fuzzing and for replaying its findings;
//! * [`faults`]: every fault at every kind of instruction, checked against the engine's guarantees;
//! * [`lists`]: random instruction lists on devices of every kind at once, none of which may access a wrong address;
//! * [`load`]: a mixed load for programs that run for minutes, and measurements while it runs;
//! * [`Notes`]: an engine that records its instructions and runs none;
//! * [`hazards`]: programs for devices with one defect, which the race detector must find;
//! * [`program`]: random programs, run on any engine and compared with the inline one.

pub mod compiled;
pub mod conformance;
pub mod corpus;
pub mod faults;
pub mod hazards;
pub mod lists;
pub mod load;
pub mod program;
mod support;

pub use support::cases::cases;
pub use support::engines::{builders, engines, threaded, with_streams};
pub use support::gate::{ClosedGate, Gate};
pub use support::held::{Rule, function_waits_for_a_kernel, kernel_waits_for_a_function};
pub use support::logged::{logged, on_logged};
pub use support::many::{HANG, each_seed};
pub use support::notes::Notes;
pub use support::patience::{PATIENCE, block_on, poll_once, until, within, within_time};
pub use support::process::run_alone;
pub use support::random::Random;
pub use support::registered::{changed, registered_ops, turned};
pub use support::setup::{CPU, failure_of, list, no_races, on_device, single_steps, small_graphs, submit, used_bytes};
pub use support::trip::{noting_kernels, trip};
pub use support::written::Text;

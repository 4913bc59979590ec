//! Suites that share one process.
#![allow(clippy::module_inception, reason = "the plainest suite of a folder has its name")]

mod engines;
#[cfg(unix)]
mod exits;
mod failures;
mod faults;
mod functions;
mod memory;
mod order;
/// The source of a crate that stands outside of the workspace, and that `make test-long` builds as one.
#[path = "../outside_backend/src/lib.rs"]
#[allow(unreachable_pub, reason = "in its crate it is the library")]
mod outside_backend;
mod programs;
mod stalls;
mod suites;
mod texts;
mod unseen;

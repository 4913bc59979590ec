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
mod programs;
mod stalls;
mod suites;
mod texts;
mod unseen;

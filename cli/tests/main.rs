//! Suites that share one process.

#[path = "../../tests/src/support/cases.rs"]
mod cases;
mod common;
#[cfg(target_os = "linux")]
mod cuda;
#[path = "../../program/tests/data/mod.rs"]
mod data;
mod language;
mod noise;
mod plan_memory;
mod process;
mod programs;
mod registered_ops;
mod scripts;
mod verify;

//! Suites that share one process.

mod brute_force;
#[path = "../../tests/src/support/cases.rs"]
mod cases;
mod hand_made;
mod size;

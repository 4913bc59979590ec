//! Programs of streamvm: so far the planner of their memory, [`memory`].
//!
//! No thread, no `unsafe`.
#![deny(unsafe_code)]

pub mod memory;

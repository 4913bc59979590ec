//! Tests of the driver through its exported functions, within this process: each provokes a check.
//!
//! Layer: uses `values`, `memory`, `kernels` and `api`; is used by no other folder.

mod bench;
mod conditional;
mod contexts;
mod faults;
mod graphs;
mod handles;
mod kernels;
mod lanes;
mod memory;
mod order;
mod parts;
mod ptx;
mod streams;

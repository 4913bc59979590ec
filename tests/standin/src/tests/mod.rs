//! Tests of the driver through its exported functions, within this process: each provokes a check.

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
mod planned;
mod ptx;
mod streams;

//! The driver through its exported functions, in this process: each check, provoked.

mod bench;
mod contexts;
mod faults;
mod handles;
mod kernels;
mod memory;
mod order;
mod planned;
mod streams;

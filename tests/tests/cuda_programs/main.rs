//! Random programs on CUDA devices, and the suites as programs, over a driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

mod lists;
mod programs;
mod suites;

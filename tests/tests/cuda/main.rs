//! CUDA devices, two of them, over a driver that stands in for NVIDIA's. A process asks a driver once how many there are.

#![cfg(target_os = "linux")]

mod blocks;
mod bounded;
mod branches;
mod calls;
mod devices;
mod ends;
mod engine;
mod failures;
mod functions;
mod graphs;
mod lanes;
mod loops;
mod operations;
mod programs;
mod reductions;
mod refused_capture;
mod registered_ops;
mod scratch;

//! One CUDA device, over a driver that stands in for NVIDIA's. A process asks a driver once how many there are.

#![cfg(target_os = "linux")]

mod lent;
mod pipeline;
mod ranges;
mod staging;
mod times;

//! CUDA devices.
#[cfg(feature = "cuda")]
mod driver;

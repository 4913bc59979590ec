//! The devices of one engine and the table of built-in kernels, which both join the CPU and CUDA.
//!
//! Layer: uses `names`, `errors`, `call`, `provider`, `cpu`, `cuda`; is used by no other folder.
//!
//! Main types: [`DeviceRegistry`](device_registry::DeviceRegistry); `builtin_kernels` adds `builtin` to
//! [`KernelRegistry`](crate::KernelRegistry).

mod builtin_kernels;
pub(crate) mod device_registry;

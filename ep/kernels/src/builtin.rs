//! The kernels of this crate, in one table.

use streamvm_ep::{DeviceKind, KernelRegistry};

use crate::table::register;

/// A registry with the kernels of this crate: for CPU devices, and for simulated devices, which run them too.
pub fn builtin() -> KernelRegistry {
    let mut registry = KernelRegistry::empty();
    register(&mut registry, DeviceKind::CPU);
    register(&mut registry, DeviceKind::SIM);
    registry
}

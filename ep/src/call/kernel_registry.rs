//! The table of kernels, indexed by (kind of device, op, dtype).

use std::fmt;

use crate::call::kernel::{Kernel, KernelFn};
use crate::errors::error::Error;
use crate::names::device_kind::DeviceKind;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;
use crate::tensor::registered_op::RegisteredOp;

const SLOTS_OF_KIND: usize = Op::ALL.len() * DType::ALL.len();

/// A table of kernels. A lookup is one access to an array.
#[derive(Clone)]
pub struct KernelRegistry {
    /// One entry per (device kind, built-in op, dtype), in that order of significance, up to the last kind that has kernels.
    table: Vec<Option<Kernel>>,
    /// How kinds run registered ops, by [`DeviceKind::index`].
    registered: Vec<Option<RegisteredOps>>,
}

/// How a kind of device runs registered ops.
#[derive(Copy, Clone)]
struct RegisteredOps {
    has: fn(RegisteredOp, DType) -> bool,
    run: KernelFn,
}

impl KernelRegistry {
    /// A table without kernels.
    pub fn empty() -> KernelRegistry {
        KernelRegistry { table: Vec::new(), registered: Vec::new() }
    }

    /// Says how devices of this kind run registered ops: `has` is whether they can run an op whose first input has this dtype, `run` is the code of its kernels.
    pub fn run_registered_ops(&mut self, device: DeviceKind, has: fn(RegisteredOp, DType) -> bool, run: KernelFn) {
        if self.registered.len() <= device.index() {
            self.registered.resize(device.index() + 1, None);
        }
        self.registered[device.index()] = Some(RegisteredOps { has, run });
    }

    /// Adds a kernel, and returns the one that it replaces. One of a registered op is not added: such an op has its own.
    pub fn register(&mut self, kernel: Kernel) -> Option<Kernel> {
        if matches!(kernel.op, Op::Registered(_)) {
            return None;
        }
        let least = (kernel.device.index() + 1) * SLOTS_OF_KIND;
        if self.table.len() < least {
            self.table.resize(least, None);
        }
        self.table[slot(kernel.op, kernel.device, kernel.dtype)].replace(kernel)
    }

    /// Adds all kernels of `other`, which replace those of the same op, kind and dtype.
    pub fn add_all(&mut self, other: &KernelRegistry) {
        for kernel in other.table.iter().flatten() {
            self.register(*kernel);
        }
        for (kind, ops) in DeviceKind::all().zip(&other.registered) {
            if let Some(RegisteredOps { has, run }) = *ops {
                self.run_registered_ops(kind, has, run);
            }
        }
    }

    /// The kernel for `op` on `device`, where `dtype` is the dtype of the op's [key input](Op::key_input). Allocates only for the error.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`], which lists the dtypes that have a kernel.
    pub fn get(&self, op: Op, device: DeviceKind, dtype: DType) -> Result<Kernel, Error> {
        self.find(op, device, dtype).ok_or_else(|| self.missing(op, device, dtype))
    }

    /// Like [`get`](KernelRegistry::get), but `None` if there is no such kernel.
    #[inline]
    pub fn find(&self, op: Op, device: DeviceKind, dtype: DType) -> Option<Kernel> {
        match op {
            Op::Registered(registered) => self.of_registered(registered, device, dtype),
            _ => *self.table.get(slot(op, device, dtype))?,
        }
    }

    #[inline(never)]
    fn of_registered(&self, op: RegisteredOp, device: DeviceKind, dtype: DType) -> Option<Kernel> {
        let RegisteredOps { has, run } = (*self.registered.get(device.index())?)?;
        has(op, dtype).then_some(Kernel { op: Op::Registered(op), device, dtype, run })
    }

    /// The dtypes that `op` has kernels for on `device`.
    pub fn dtypes(&self, op: Op, device: DeviceKind) -> Vec<DType> {
        DType::ALL.into_iter().filter(|&dtype| self.find(op, device, dtype).is_some()).collect()
    }

    /// The error for a kernel that [`find`](KernelRegistry::find) does not find.
    #[cold]
    pub fn missing(&self, op: Op, device: DeviceKind, dtype: DType) -> Error {
        Error::MissingKernel { op, device, dtype, available: self.dtypes(op, device) }
    }
}

impl fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.table.iter().flatten().count();
        f.debug_struct("KernelRegistry").field("kernels", &kernels).finish()
    }
}

#[inline]
fn slot(op: Op, device: DeviceKind, dtype: DType) -> usize {
    device.index() * SLOTS_OF_KIND + op.index() * DType::ALL.len() + dtype as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_kernel_kind_says_that_there_is_none() {
        let error = KernelRegistry::empty().get(Op::Add, DeviceKind::CUDA, DType::F32).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn registering_replaces_and_returns_the_former() {
        let mut kernels = KernelRegistry::empty();
        let kernel = Kernel { op: Op::Add, device: DeviceKind::CUDA, dtype: DType::F32, run: |_| Ok(()) };
        assert!(kernels.register(kernel).is_none());
        assert!(kernels.register(kernel).is_some());
        assert_eq!(kernels.dtypes(Op::Add, DeviceKind::CUDA), [DType::F32]);
        let mut others = KernelRegistry::empty();
        others.register(Kernel { device: DeviceKind::SIM, ..kernel });
        kernels.add_all(&others);
        for device in [DeviceKind::CUDA, DeviceKind::SIM] {
            assert!(kernels.find(Op::Add, device, DType::F32).is_some_and(|found| found.device == device));
        }
    }
}

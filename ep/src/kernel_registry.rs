//! Which kernels there are, found by (op, kind of device, dtype).

use std::fmt;

use crate::cpu;
use crate::cuda;
use crate::device::DeviceKind;
use crate::dtype::DType;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::op::Op;

const SLOTS: usize = Op::ALL.len() * DeviceKind::ALL.len() * DType::ALL.len();

/// A table of kernels. Looking one up is one array access.
#[derive(Clone)]
pub struct KernelRegistry {
    /// One entry per (op, device kind, dtype), in that order of significance.
    table: Box<[Option<Kernel>; SLOTS]>,
}

impl KernelRegistry {
    /// A table without kernels.
    pub fn empty() -> KernelRegistry {
        KernelRegistry { table: Box::new([None; SLOTS]) }
    }

    /// The kernels of this crate: those of the CPU, which simulated devices run too, and those of CUDA devices, of which
    /// this table knows that they are there: their code is the device's.
    pub fn builtin() -> KernelRegistry {
        let mut registry = KernelRegistry::empty();
        cpu::register(&mut registry, DeviceKind::Cpu);
        cpu::register(&mut registry, DeviceKind::Sim);
        cuda::register(&mut registry);
        registry
    }

    /// Adds a kernel. Returns the one that it takes the place of, if any.
    pub fn register(&mut self, kernel: Kernel) -> Option<Kernel> {
        self.table[slot(kernel.op, kernel.device, kernel.dtype)].replace(kernel)
    }

    /// The kernel for `op` on `device`, where `dtype` is that of the op's
    /// [key input](Op::key_input). Allocates nothing unless there is none.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKernel`], which lists the dtypes that there is one for.
    pub fn get(&self, op: Op, device: DeviceKind, dtype: DType) -> Result<Kernel, Error> {
        self.find(op, device, dtype).copied().ok_or_else(|| self.missing(op, device, dtype))
    }

    /// [`get`](KernelRegistry::get) of where it lies: `None` where there is none.
    #[inline]
    pub fn find(&self, op: Op, device: DeviceKind, dtype: DType) -> Option<&Kernel> {
        self.table[slot(op, device, dtype)].as_ref()
    }

    /// The dtypes that `op` has kernels for on `device`.
    pub fn dtypes(&self, op: Op, device: DeviceKind) -> Vec<DType> {
        DType::ALL.into_iter().filter(|&dtype| self.table[slot(op, device, dtype)].is_some()).collect()
    }

    /// Why there is none where [`find`](KernelRegistry::find) finds none.
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
    (op as usize * DeviceKind::ALL.len() + device as usize) * DType::ALL.len() + dtype as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::supports;

    #[test]
    fn every_supported_op_and_dtype_has_a_kernel_on_every_kind_of_device_and_no_other_has() {
        let kernels = KernelRegistry::builtin();
        for op in Op::ALL {
            for dtype in DType::ALL {
                for device in DeviceKind::ALL {
                    let found = kernels.get(op, device, dtype);
                    assert_eq!(found.is_ok(), supports(op, dtype), "{op} of {dtype} on {device}");
                    if let Ok(kernel) = found {
                        assert_eq!((kernel.op, kernel.device, kernel.dtype), (op, device, dtype));
                    }
                }
            }
        }
    }

    #[test]
    fn a_missing_kernel_names_the_dtypes_that_exist() {
        let error = KernelRegistry::builtin().get(Op::Exp, DeviceKind::Cpu, DType::I32).unwrap_err();
        let text = error.to_string();
        for part in ["exp", "cpu", "i32", "f32, f64, f16, bf16"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_missing_kernel_kind_says_that_there_is_none() {
        let error = KernelRegistry::empty().get(Op::Add, DeviceKind::Cuda, DType::F32).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn registering_replaces_and_returns_the_former() {
        let mut kernels = KernelRegistry::empty();
        let kernel = Kernel { op: Op::Add, device: DeviceKind::Cuda, dtype: DType::F32, run: |_| Ok(()) };
        assert!(kernels.register(kernel).is_none());
        assert!(kernels.register(kernel).is_some());
        assert_eq!(kernels.dtypes(Op::Add, DeviceKind::Cuda), [DType::F32]);
    }
}

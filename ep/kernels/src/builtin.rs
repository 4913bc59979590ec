//! The kernels of this crate, in one table.

use crate::call::kernel_registry::KernelRegistry;
use crate::cpu;
use crate::cuda;
use crate::names::device_id::DeviceKind;

impl KernelRegistry {
    /// A registry with the kernels of this crate: those of the CPU, which simulated devices run too, and those of CUDA devices. For the
    /// latter the table only says that they exist; their code is on the device.
    pub fn builtin() -> KernelRegistry {
        let mut registry = KernelRegistry::empty();
        cpu::register(&mut registry, DeviceKind::Cpu);
        cpu::register(&mut registry, DeviceKind::Sim);
        cuda::register(&mut registry);
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::dtype::DType;
    use crate::tensor::op::Op;

    #[test]
    fn every_supported_op_and_dtype_has_a_kernel_on_every_kind_of_device_and_no_other_has() {
        let kernels = KernelRegistry::builtin();
        for op in Op::ALL {
            for dtype in DType::ALL {
                for device in DeviceKind::ALL {
                    let found = kernels.get(op, device, dtype);
                    assert_eq!(found.is_ok(), op.supports(dtype), "{op} of {dtype} on {device}");
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
}

//! Devices, and what they compute on: the layer for those who write kernels and backends. With the feature `sim` also simulated devices, faults and
//! the race detector.

pub use streamvm_cpu::{CpuConfig, CpuDevice, CpuSequence, devices};
pub use streamvm_cuda as cuda;
pub use streamvm_ep::*;
pub use streamvm_kernels as kernels;
#[cfg(feature = "sim")]
pub use streamvm_sim::{faults, races, sim};

/// A registry with the kernels of every kind of device. For CUDA devices it only says that they exist; their code is on the device.
pub fn builtin_kernels() -> KernelRegistry {
    let mut registry = streamvm_kernels::builtin();
    streamvm_cuda::register(&mut registry);
    registry
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn every_supported_op_and_dtype_has_a_kernel_on_every_kind_of_device_and_no_other_has() {
        let kernels = builtin_kernels();
        for op in Op::ALL {
            for dtype in DType::ALL {
                for device in DeviceKind::BUILT_IN {
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
        let error = builtin_kernels().get(Op::Exp, DeviceKind::CPU, DType::I32).unwrap_err();
        let text = error.to_string();
        for part in ["exp", "cpu", "i32", "f32, f64, f16, bf16"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

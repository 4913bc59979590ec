//! Sets of devices, with those of the CPU as examples.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm_ep::{CudaAbsent, DeviceId, DeviceRegistry, Error};

use crate::{CpuConfig, CpuDevice, devices};

fn registry(cpus: u32) -> DeviceRegistry {
    let mut registry = DeviceRegistry::new();
    devices(cpus, &CpuConfig::default()).for_each(|device| registry.add(device).unwrap());
    registry
}

#[test]
fn a_missing_device_names_the_ones_there_are() {
    let devices = registry(2);
    assert_eq!(devices.get(DeviceId::cpu(1)).unwrap().id(), DeviceId::cpu(1));
    let text = devices.get(DeviceId::sim(0)).unwrap_err().to_string();
    assert!(text.contains("sim:0") && text.contains("cpu:0, cpu:1"), "{text}");
}

#[test]
fn cuda_devices_are_looked_for_once_and_when_one_is_asked_for() {
    let looked = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&looked);
    let devices = registry(1).with_cuda(move || {
        seen.fetch_add(1, Ordering::Relaxed);
        // Any device will do.
        Ok(vec![Arc::new(CpuDevice::new(7, CpuConfig::default()))])
    });
    assert!(devices.get(DeviceId::cpu(0)).is_ok() && devices.get(DeviceId::cpu(7)).is_err());
    assert_eq!((looked.load(Ordering::Relaxed), devices.iter().count()), (0, 1));
    let text = devices.get(DeviceId::cuda(0)).unwrap_err().to_string();
    assert!(text.contains("no device cuda:0; available: cpu:0, cpu:7"), "{text}");
    assert!(devices.find_cuda().is_ok() && devices.clone().get(DeviceId::cpu(7)).is_ok());
    assert_eq!((looked.load(Ordering::Relaxed), devices.iter().count()), (1, 2));
}

#[test]
fn a_cuda_device_that_is_not_there_says_why() {
    let devices = registry(1).with_cuda(|| Err(CudaAbsent::NotBuilt));
    let error = devices.get(DeviceId::cuda(3)).unwrap_err();
    let reason = Box::new(CudaAbsent::NotBuilt);
    assert_eq!(error, Error::NoCuda { device: DeviceId::cuda(3), reason });
    assert!(error.to_string().contains("no cuda:3: this build has no CUDA"), "{error}");
    assert!(devices.get(DeviceId::cpu(0)).is_ok());
    let none = DeviceRegistry::new();
    assert_eq!(none.find_cuda(), Err(&CudaAbsent::NotOffered));
    let error = none.get(DeviceId::cuda(0)).unwrap_err();
    assert!(error.to_string().contains("no cuda:0: this engine offers no CUDA devices"), "{error}");
}

#[test]
fn two_devices_of_one_id_are_refused() {
    let mut devices = DeviceRegistry::new();
    let device = || Arc::new(CpuDevice::new(3, CpuConfig::default()));
    devices.add(device()).unwrap();
    let id = DeviceId::cpu(3);
    assert_eq!(devices.add(device()), Err(Error::DuplicateDevice { device: id }));
    assert_eq!(devices.iter().count(), 1);
}

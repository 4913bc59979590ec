//! The devices of one engine.

use std::sync::Arc;

use crate::cpu::{CpuConfig, CpuDevice};
use crate::device::{Device, DeviceId};
use crate::error::Error;

/// A set of devices, each with its own id, in the order they were added.
#[derive(Clone, Debug, Default)]
pub struct DeviceRegistry {
    devices: Vec<Arc<dyn Device>>,
}

impl DeviceRegistry {
    /// No devices.
    pub fn new() -> DeviceRegistry {
        DeviceRegistry::default()
    }

    /// The device `cpu:0`.
    pub fn with_cpu(config: CpuConfig) -> DeviceRegistry {
        DeviceRegistry::with_cpus(1, config)
    }

    /// The devices `cpu:0` to `cpu:<count - 1>`, each with this configuration. All run on the same
    /// cores; more than one is for programs that want several memories and queues.
    pub fn with_cpus(count: u32, config: CpuConfig) -> DeviceRegistry {
        let device = |index| -> Arc<dyn Device> { Arc::new(CpuDevice::new(index, config.clone())) };
        DeviceRegistry { devices: (0..count).map(device).collect() }
    }

    /// Adds a device.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicateDevice`] if there is one of its id.
    pub fn add(&mut self, device: Arc<dyn Device>) -> Result<(), Error> {
        let id = device.id();
        if self.devices.iter().any(|known| known.id() == id) {
            return Err(Error::DuplicateDevice { device: id });
        }
        self.devices.push(device);
        Ok(())
    }

    /// The device of this id.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], which lists those there are.
    pub fn get(&self, id: DeviceId) -> Result<&Arc<dyn Device>, Error> {
        self.iter()
            .find(|device| device.id() == id)
            .ok_or_else(|| Error::NoDevice { device: id, available: self.iter().map(|device| device.id()).collect() })
    }

    /// The devices, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.devices.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_names_the_ones_there_are() {
        let devices = DeviceRegistry::with_cpus(2, CpuConfig::default());
        assert_eq!(devices.get(DeviceId::cpu(1)).unwrap().id(), DeviceId::cpu(1));
        let text = devices.get(DeviceId::cuda(0)).unwrap_err().to_string();
        assert!(text.contains("cuda:0") && text.contains("cpu:0, cpu:1"), "{text}");
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
}

//! The devices of one engine.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::cpu::{CpuConfig, CpuDevice};
use crate::errors::cuda_absent::CudaAbsent;
use crate::errors::error::Error;
use crate::names::device_id::{DeviceId, DeviceKind};
use crate::provider::device::Device;

/// A set of devices with distinct ids, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct DeviceRegistry {
    devices: Vec<Arc<dyn Device>>,
    cuda: Option<Arc<OnDemand>>,
}

/// Opens the CUDA devices, or returns why there are none.
type Open = dyn Fn() -> Result<Vec<Arc<dyn Device>>, CudaAbsent> + Send + Sync;

/// CUDA devices that are opened at first use, because starting the driver would slow down programs that use none.
struct OnDemand {
    open: Box<Open>,
    opened: OnceLock<Result<Vec<Arc<dyn Device>>, CudaAbsent>>,
}

impl OnDemand {
    fn opened(&self) -> Result<&[Arc<dyn Device>], &CudaAbsent> {
        self.opened.get_or_init(|| (self.open)()).as_deref()
    }

    /// The devices, if they have been opened.
    fn known(&self) -> &[Arc<dyn Device>] {
        self.opened.get().and_then(|opened| opened.as_deref().ok()).unwrap_or_default()
    }
}

impl fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnDemand").field(&self.opened.get()).finish()
    }
}

impl DeviceRegistry {
    /// A registry without devices.
    pub fn new() -> DeviceRegistry {
        DeviceRegistry::default()
    }

    /// The device `cpu:0`.
    pub fn with_cpu(config: CpuConfig) -> DeviceRegistry {
        DeviceRegistry::with_cpus(1, config)
    }

    /// The devices `cpu:0` to `cpu:<count - 1>`, each with this configuration. All run on the same cores; more than one is for programs
    /// that need several memories and queues.
    pub fn with_cpus(count: u32, config: CpuConfig) -> DeviceRegistry {
        let device = |index| -> Arc<dyn Device> { Arc::new(CpuDevice::new(index, config.clone())) };
        DeviceRegistry { devices: (0..count).map(device).collect(), cuda: None }
    }

    /// This set with the CUDA devices that `open` returns. `open` is called once, when a CUDA device is asked for. Other threads that ask
    /// for one wait meanwhile, so `open` must not ask this set for one.
    #[must_use]
    pub fn with_cuda(
        self,
        open: impl Fn() -> Result<Vec<Arc<dyn Device>>, CudaAbsent> + Send + Sync + 'static,
    ) -> DeviceRegistry {
        let cuda = OnDemand { open: Box::new(open), opened: OnceLock::new() };
        DeviceRegistry { cuda: Some(Arc::new(cuda)), ..self }
    }

    /// Adds a device.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicateDevice`] if the set has a device with the same id.
    pub fn add(&mut self, device: Arc<dyn Device>) -> Result<(), Error> {
        let id = device.id();
        if self.devices.iter().any(|known| known.id() == id) {
            return Err(Error::DuplicateDevice { device: id });
        }
        self.devices.push(device);
        Ok(())
    }

    /// The device with this id. The first request for a CUDA device starts the driver, which may block for seconds.
    ///
    /// # Errors
    ///
    /// [`Error::NoCuda`], with the reason why there is no CUDA device at all; [`Error::NoDevice`], with a list of the devices that there
    /// are.
    pub fn get(&self, id: DeviceId) -> Result<&Arc<dyn Device>, Error> {
        let cuda = if id.kind == DeviceKind::Cuda { self.find_cuda() } else { Ok(()) };
        self.iter().find(|device| device.id() == id).ok_or_else(|| match cuda {
            Err(reason) => Error::NoCuda { device: id, reason: Box::new(reason.clone()) },
            Ok(()) => Error::NoDevice { device: id, available: self.iter().map(|device| device.id()).collect() },
        })
    }

    /// The devices, in the order in which they were added. CUDA devices come last, once one has been asked for.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Device>> {
        self.devices.iter().chain(self.cuda.iter().flat_map(|cuda| cuda.known()))
    }

    /// Opens the CUDA devices now, as [`get`](DeviceRegistry::get) does for one of them.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub fn find_cuda(&self) -> Result<(), &CudaAbsent> {
        match &self.cuda {
            Some(cuda) => cuda.opened().map(|_| ()),
            None => Err(&CudaAbsent::NotOffered),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_missing_device_names_the_ones_there_are() {
        let devices = DeviceRegistry::with_cpus(2, CpuConfig::default());
        assert_eq!(devices.get(DeviceId::cpu(1)).unwrap().id(), DeviceId::cpu(1));
        let text = devices.get(DeviceId::sim(0)).unwrap_err().to_string();
        assert!(text.contains("sim:0") && text.contains("cpu:0, cpu:1"), "{text}");
    }

    #[test]
    fn cuda_devices_are_looked_for_once_and_when_one_is_asked_for() {
        let looked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&looked);
        let devices = DeviceRegistry::with_cpu(CpuConfig::default()).with_cuda(move || {
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
        let devices = DeviceRegistry::with_cpu(CpuConfig::default()).with_cuda(|| Err(CudaAbsent::NotBuilt));
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
}

//! The devices of one engine.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::errors::cuda_absent::CudaAbsent;
use crate::errors::error::Error;
use crate::names::device_id::DeviceId;
use crate::names::device_kind::DeviceKind;
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
        let cuda = if id.kind == DeviceKind::CUDA { self.find_cuda() } else { Ok(()) };
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

//! The CUDA devices of an engine. They are opened when the program first asks for one, and kept by their concrete type, which
//! loading a caller's own kernels needs.

use std::sync::Arc;

use streamvm_cuda::{self as cuda, CudaConfig};
use streamvm_ep::{CudaAbsent, Device, DeviceId};

/// The CUDA devices of one engine; none before [`CudaDevices::open`].
#[derive(Debug, Default)]
pub(crate) struct CudaDevices {
    #[cfg(feature = "cuda")]
    opened: std::sync::OnceLock<Vec<Arc<cuda::CudaDevice>>>,
}

#[cfg(feature = "cuda")]
impl CudaDevices {
    /// Opens all CUDA devices of the machine.
    ///
    /// # Errors
    /// [`CudaAbsent`] says why there is none.
    pub(crate) fn open(&self, config: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
        let devices = cuda::CudaDevice::open(config)?;
        let opened = self.opened.get_or_init(|| devices);
        Ok(opened.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect())
    }

    /// The CUDA device `id`; `None` if there is none, or before [`CudaDevices::open`].
    pub(crate) fn get(&self, id: DeviceId) -> Option<&cuda::CudaDevice> {
        self.opened.get()?.iter().find(|device| device.id() == id).map(|device| &**device)
    }

    /// How many bytes of memory the CUDA device `id` has; `None` if there is none, or the driver does not say.
    pub(crate) fn total_memory(&self, id: DeviceId) -> Option<u64> {
        let (_, total) = self.get(id)?.memory_info().ok()?;
        Some(total)
    }
}

#[cfg(not(feature = "cuda"))]
impl CudaDevices {
    /// Opens nothing: this build is without the feature `cuda`.
    ///
    /// # Errors
    /// [`CudaAbsent::NotBuilt`].
    pub(crate) fn open(&self, config: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
        cuda::open(config)
    }

    /// This build has no CUDA devices.
    pub(crate) fn total_memory(&self, _: DeviceId) -> Option<u64> {
        None
    }
}

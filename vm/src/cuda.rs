//! CUDA devices of an engine: looked for when one is asked for, and kept as what they are for kernels of a caller's own.

use std::sync::Arc;

use streamvm_ep::Device;
use streamvm_ep::cuda::{self, CudaAbsent, CudaConfig};

/// The CUDA devices of one engine, once one of them was asked for.
#[derive(Debug, Default)]
pub(crate) struct CudaDevices {
    #[cfg(feature = "cuda")]
    opened: std::sync::OnceLock<Vec<Arc<cuda::CudaDevice>>>,
}

#[cfg(feature = "cuda")]
impl CudaDevices {
    /// Opens the devices.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn open(&self, config: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
        let devices = cuda::CudaDevice::open(config)?;
        let opened = self.opened.get_or_init(|| devices);
        Ok(opened.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect())
    }

    /// The device, if it is one of these and they were asked for.
    fn get(&self, id: streamvm_ep::DeviceId) -> Option<&cuda::CudaDevice> {
        self.opened.get()?.iter().find(|device| device.id() == id).map(|device| &**device)
    }
}

#[cfg(not(feature = "cuda"))]
impl CudaDevices {
    /// There are none: this build left CUDA out.
    ///
    /// # Errors
    /// [`CudaAbsent::NotBuilt`].
    pub(crate) fn open(&self, config: &CudaConfig) -> Result<Vec<Arc<dyn Device>>, CudaAbsent> {
        cuda::open(config)
    }
}

#[cfg(feature = "cuda")]
impl crate::Vm {
    /// Loads a kernel of the caller's own on a CUDA device, for
    /// [`InstructionsBuilder::call_cuda`](crate::InstructionsBuilder::call_cuda). The driver compiles it, which takes long and
    /// may wait for what runs; it stays loaded as long as the engine.
    ///
    /// # Errors
    /// No such device; what the driver's compiler says, or that the PTX has no such kernel; a forked child.
    pub fn load_cuda(
        &self,
        device: crate::DeviceId,
        ptx: &cuda::Ptx,
        kernel: &str,
    ) -> Result<cuda::CudaFunction, crate::Error> {
        Ok(self.cuda(device)?.load(ptx, kernel)?)
    }

    /// How many matrix products a CUDA device was given by this engine, by what computes them: cuBLAS, or streamvm's own
    /// kernel. What was submitted and not launched yet does not count. Blocks on nothing.
    ///
    /// # Errors
    /// No such device; a forked child.
    pub fn cuda_products(&self, device: crate::DeviceId) -> Result<cuda::CudaProducts, crate::Error> {
        Ok(self.cuda(device)?.products())
    }

    fn cuda(&self, device: crate::DeviceId) -> Result<&cuda::CudaDevice, crate::Error> {
        let shared = &self.shared;
        shared.handle.fork.check()?;
        shared.devices.get(device)?;
        let found = shared.cuda.get(device);
        Ok(found.ok_or(streamvm_ep::Error::WrongDevice { kernel: crate::DeviceKind::Cuda, device })?)
    }
}

//! Calls of [`Vm`] that exist for CUDA devices only: loading a caller's own kernels, and counts of matrix products.

use streamvm_cuda as cuda;
use streamvm_ep::{self as ep, DeviceId, DeviceKind};
use streamvm_instructions::Error;

use crate::sync::fork::refuse_in_child;
use crate::vm::Vm;

impl Vm {
    /// Loads a caller's own kernel on a CUDA device, for
    /// [`InstructionsBuilder::call_cuda`](crate::InstructionsBuilder::call_cuda). The driver compiles it, which takes long and may
    /// block until running work is over. The kernel stays loaded until the engine ends.
    ///
    /// # Errors
    /// The device does not exist, or is no CUDA device; the driver's compiler refuses the PTX, or the PTX has no such kernel;
    /// [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn load_cuda(&self, device: DeviceId, ptx: &cuda::Ptx, kernel: &str) -> Result<cuda::CudaFunction, Error> {
        Ok(self.cuda(device)?.load(ptx, kernel)?)
    }

    /// How many matrix products this engine has launched on a CUDA device, by the code that computes them: cuBLAS, or streamvm's
    /// own kernel. Products that are submitted but not launched do not count. Does not wait for the device.
    ///
    /// # Errors
    /// The device does not exist, or is no CUDA device; [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn cuda_products(&self, device: DeviceId) -> Result<cuda::CudaProducts, Error> {
        Ok(self.cuda(device)?.products())
    }

    #[track_caller]
    fn cuda(&self, device: DeviceId) -> Result<&cuda::CudaDevice, Error> {
        let engine = &self.engine;
        refuse_in_child(engine.handle.fork)?;
        engine.devices.get(device)?;
        let found = engine.cuda.get(device);
        Ok(found.ok_or(ep::Error::WrongDevice { kernel: DeviceKind::CUDA, device })?)
    }
}

//! A caller's own kernel, loaded on one device.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::{Error, RawCall};

use crate::device::CudaDevice;
use crate::driver::{Extent, FunctionHandle, StreamHandle};
use crate::instance::Instance;
use crate::instance::loaded_kernels::load_module;
use crate::source::{CudaArgument, CudaGrid, Ptx};

/// A kernel of a caller's own, loaded on one device. Its module stays loaded as long as the devices of the same
/// [`open`](CudaDevice::open) call are in use.
#[derive(Clone, Debug)]
pub struct CudaFunction {
    instance: Arc<Instance>,
    index: usize,
    handle: FunctionHandle,
}

impl CudaDevice {
    /// Loads a kernel. The driver compiles the PTX for the device, which takes long and may wait for running commands.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] with the messages of the driver's compiler, or if the PTX has no kernel of this name; [`Error::DeviceLost`].
    pub fn load(&self, ptx: &Ptx, name: &str) -> Result<CudaFunction, Error> {
        let (instance, index) = (self.instance(), self.index());
        let (device, driver) = (&instance.devices[index], instance.driver);
        let opened = instance.opened(index)?;
        let _current = device.enter(opened)?;
        let module = load_module(driver, ptx.as_c_str(), name).map_err(|refused| device.refused(refused))?;
        device.keep_module(module);
        // No kernel has a name with a NUL, so an empty name gives the same error.
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module has just been loaded.
        let handle = unsafe { driver.function(module, &c_name) }.map_err(|failure| device.fail(failure))?;
        Ok(CudaFunction { instance: Arc::clone(instance), index, handle })
    }
}

impl CudaFunction {
    /// Queues a launch on the stream of a [`call_raw`](streamvm_ep::Stream::call_raw), in the function that it runs.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`] if the stream is of another device than the one that the kernel was loaded on; errors of the driver.
    ///
    /// # Safety
    ///
    /// * `call` is the argument of the function that `call_raw` runs, and that function has not returned.
    /// * The arguments match the kernel's parameters in number, order and type.
    /// * The kernel accesses only the operands of the call, and only as their access says.
    pub unsafe fn launch(&self, call: &RawCall<'_>, grid: &CudaGrid, arguments: &[CudaArgument]) -> Result<(), Error> {
        let device = &self.instance.devices[self.index];
        let opened = self.instance.opened(self.index)?;
        if !ptr::eq(opened.context.handle.raw(), call.context) {
            return Err(Error::OtherDevice { loaded: device.id, device: call.device });
        }
        let CudaGrid { blocks, threads, shared_bytes } = *grid;
        let extent = Extent { grid: blocks, block: threads, shared_bytes };
        let mut parameters: SmallVec<[*mut c_void; 16]> = arguments.iter().map(CudaArgument::as_ptr).collect();
        // SAFETY: the caller guarantees that this is the stream of a call in progress.
        let stream = unsafe { StreamHandle::of(call.stream) };
        // SAFETY: the function's module is loaded as long as the instance, and the context is the stream's and current; the
        // caller guarantees the rest.
        let launched = unsafe { self.instance.driver.launch(self.handle, &extent, stream, &mut parameters) };
        launched.map_err(|failure| device.fail(failure))
    }
}

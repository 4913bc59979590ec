//! streamvm's own kernels and the empty one, launched by hand: so the same work stands on both sides.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};

use cudarc::driver::{DriverError, result, sys};
use streamvm::ep::cuda::{KernelName, Launch, kernel_ptx, plan, plan_fill};
use streamvm::ep::{KernelCall, Operand, builtin_kernels};
use streamvm::{Access, DType, DeviceKind, Layout, Op, Params, Scalar, Shape};

use super::{Cuda, Stream};
use crate::contest::error::Error;
use crate::{EMPTY, EMPTY_PTX};

/// Kernels in the current context, each loaded when it is first asked for.
#[derive(Debug)]
pub struct Kernels<'c> {
    _cuda: &'c Cuda,
    modules: RefCell<Vec<sys::CUmodule>>,
    functions: RefCell<HashMap<KernelName, sys::CUfunction>>,
}

/// A kernel with all that its launch wants: nothing is worked out in a loop of launches.
#[derive(Copy, Clone, Debug)]
pub struct Ready {
    function: sys::CUfunction,
    /// `None`: the empty kernel, one thread and no parameters.
    launch: Option<Launch>,
}

/// A matrix of `f32` at an address of the device.
pub fn f32s(address: u64, shape: [usize; 2], access: Access) -> Result<Operand<'static>, Error> {
    let layout = Layout::contiguous(Shape::new(&shape).map_err(streamvm::BuildError::from)?);
    let base = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: what is made of it is a plan, which reads no element; the launch is in the bench's own order.
    Ok(unsafe { Operand::new(base, DType::F32, layout, access) })
}

impl<'c> Kernels<'c> {
    /// None loaded yet.
    pub fn new(cuda: &'c Cuda) -> Kernels<'c> {
        Kernels { _cuda: cuda, modules: RefCell::default(), functions: RefCell::default() }
    }

    /// The kernel that does nothing.
    ///
    /// # Errors
    /// The driver's.
    pub fn empty(&self) -> Result<Ready, Error> {
        let ptx = CString::new(EMPTY_PTX).unwrap_or_default();
        Ok(Ready { function: self.load(&ptx, EMPTY)?, launch: None })
    }

    /// streamvm's kernel of an op of two inputs over `f32`: `a` and `b`, then where it writes.
    ///
    /// # Errors
    /// The op's and the driver's.
    pub fn binary(&self, op: Op, a: Operand, b: Operand, out: Operand) -> Result<Ready, Error> {
        let kernel =
            builtin_kernels().get(op, DeviceKind::CUDA, DType::F32).map_err(|error| Error::Engine(error.into()))?;
        let (params, mut operands) = (Params::default(), [a, b, out]);
        let call = KernelCall::new(kernel, &mut operands, 2, &params);
        let launch = plan(&call).map_err(|error| Error::Engine(streamvm::ep::Error::from(error).into()))?;
        self.ready(launch)
    }

    /// streamvm's kernel that fills `out`.
    ///
    /// # Errors
    /// The driver's, and a value that does not fit.
    pub fn fill(&self, out: &Operand, value: impl Into<Scalar>) -> Result<Ready, Error> {
        self.ready(plan_fill(out, value.into()).map_err(|error| Error::Engine(error.into()))?)
    }

    fn ready(&self, launch: Option<Launch>) -> Result<Ready, Error> {
        let launch = launch.ok_or_else(|| Error::Missing("there are no elements to work on".to_owned()))?;
        let name = launch.kernel;
        if let Some(&function) = self.functions.borrow().get(&name) {
            return Ok(Ready { function, launch: Some(launch) });
        }
        let missing = || Error::Missing(format!("there is no PTX of {name}"));
        let function = self.load(&kernel_ptx(name).ok_or_else(missing)?, &name.to_string())?;
        self.functions.borrow_mut().insert(name, function);
        Ok(Ready { function, launch: Some(launch) })
    }

    pub(super) fn load(&self, ptx: &CStr, kernel: &str) -> Result<sys::CUfunction, DriverError> {
        // SAFETY: the image is C text, which PTX is.
        let module = unsafe { result::module::load_data(ptx.as_ptr().cast()) }?;
        self.modules.borrow_mut().push(module);
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(module, CString::new(kernel).unwrap_or_default()) }
    }
}

impl Drop for Kernels<'_> {
    fn drop(&mut self) {
        for module in self.modules.borrow_mut().drain(..) {
            // SAFETY: it is loaded, and this is its end: streams that ran it are over.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

impl Stream<'_> {
    /// Queues a launch.
    ///
    /// # Errors
    /// The driver's.
    #[inline]
    pub fn launch(&self, ready: &Ready) -> Result<(), DriverError> {
        let (grid, block, shared) = ready
            .launch
            .as_ref()
            .map_or(([1; 3], [1; 3], 0), |launch| (launch.grid, launch.block, launch.shared_bytes));
        let argument = ready.launch.as_ref().map(|launch| (&raw const launch.arguments).cast_mut().cast::<c_void>());
        let mut arguments = [argument.unwrap_or(std::ptr::null_mut())];
        let count = usize::from(argument.is_some());
        let (function, stream) = (ready.function, self.raw());
        let (grid, block) = (grid.into(), block.into());
        // SAFETY: the function is loaded, its one parameter is what it was planned with, and memory is alive until the
        // stream is over.
        unsafe { result::launch_kernel(function, grid, block, shared, stream, &mut arguments[..count]) }
    }
}

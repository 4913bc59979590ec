//! Launches of our own kernels: a kernel is loaded at its first launch, one that may fail gets a status, and some reductions are launched twice.

use std::ffi::c_void;
use std::ptr;

use smallvec::SmallVec;
use streamvm_ep::backend::check::check_over_tensors;
use streamvm_ep::{Error, KernelCall, Op, Stream};

use crate::driver::error_codes::OUT_OF_MEMORY;
use crate::driver::{Driver, DriverFailure, Extent, FunctionHandle, StreamHandle};
use crate::elementwise::{CudaLaunch, CudaTensorCode};
use crate::instance::Opened;
use crate::instance::loaded_kernels::LoadError;
use crate::instance::statuses::Launched;
use crate::plan::Launch;
use crate::plan::kernel_name::KernelName;
use crate::source::{CudaArgument, CudaGrid};
use crate::stream::{CudaStream, RebindContext};

/// The advice in the error for a kernel that does not fit into the device.
const NO_ROOM: &str = "the code of a kernel needs memory of the device when it is first launched: set CudaConfig::memory_limit below what the device has, or \
                       run each program once before its data fills the device";

impl CudaStream {
    /// The kernel of this name, which its first launch loads. `None`: a capture is under way, in which nothing may be loaded; it gives no graph, and its
    /// commands run one by one.
    #[inline]
    fn function(&mut self, kernel: KernelName) -> Result<Option<FunctionHandle>, Error> {
        let known = self.instance.opened(self.index)?.kernels.get(kernel);
        if known.is_some() { Ok(known) } else { self.load(kernel) }
    }

    #[cold]
    fn load(&mut self, kernel: KernelName) -> Result<Option<FunctionHandle>, Error> {
        if let Some(capture) = &mut self.capture {
            capture.unloaded.push(kernel);
            return Ok(None);
        }
        let (device, opened) = (self.device(), self.instance.opened(self.index)?);
        let _current = device.enter(opened)?;
        self.load_now(opened, kernel).map(Some).map_err(|refused| device.refused(refused))
    }

    /// Loads a kernel. If the device has no memory for it, memory whose free was deferred is freed first. The context is current, and the stream captures
    /// nothing.
    #[cold]
    pub(super) fn load_now(&self, opened: &Opened, kernel: KernelName) -> Result<FunctionHandle, LoadError> {
        let load = || opened.kernels.load(self.instance.driver, kernel);
        match load() {
            Err(refused) if refused.failure.code() == OUT_OF_MEMORY => {
                let again = if self.device().free_deferred(opened) { load() } else { Err(refused) };
                again.map_err(|refused| LoadError { text: format!("{}; {NO_ROOM}", refused.text), ..refused })
            }
            loaded => loaded,
        }
    }

    /// Launches one of our kernels.
    #[inline]
    pub(super) fn launch_planned(&mut self, what: &str, launch: Launch) -> Result<(), Error> {
        if launch.kernel.can_fail() {
            if let Some(capture) = &mut self.capture {
                // Its status belongs to one launch, and its event must be recorded after that.
                capture.failed = true;
                return Ok(());
            }
            return self.launch_fallible(what, launch);
        }
        let Some(function) = self.function(launch.kernel)? else { return Ok(()) };
        let parts = launch.parts();
        if parts > 1 {
            return self.launch_in_parts(what, function, (&launch, parts));
        }
        self.submit_timed(what, |driver, _, stream| {
            // SAFETY: the plan was made for this kernel, from operands whose makers guarantee their memory.
            unsafe { launch_kernel(driver, function, stream, launch) }
        })
    }

    /// Launches the kernel of a registered op over tensors.
    pub(super) fn launch_registered(
        &mut self,
        call: &mut KernelCall<'_, 'static>,
        code: &CudaTensorCode,
    ) -> Result<(), Error> {
        check_over_tensors(call)?;
        let KernelCall { kernel, operands, .. } = call;
        let op = kernel.op;
        if operands.last().is_none_or(|output| output.layout().elements() == 0) {
            return Ok(());
        }
        // A capture that lacks the kernel is made again, so nothing else is done for it.
        let Some(function) = self.function(KernelName::Op(op, kernel.dtype))? else { return Ok(()) };
        for operand in operands.iter().filter(|operand| operand.layout().elements() > 0) {
            self.check_reach(operand)?;
        }
        if let (Op::Registered(registered), [first, .., output]) = (op, &mut **operands)
            && registered.is_in_place()
            && !output.same_view(first)
        {
            self.copy(first, output)?;
        }
        for operand in operands.iter_mut() {
            let address = self.instance.address_map.kernel_address(operand.ptr().addr());
            // SAFETY: the map has the address at which the devices of the instance reach the same memory.
            unsafe { operand.set_address(address) };
        }
        let planned = {
            let opened = self.instance.opened(self.index)?;
            let _current = self.device().enter(opened)?;
            // The code of a caller may leave another context current, also if it panics.
            let _rebind = RebindContext { driver: self.instance.driver, opened };
            code.plan(call, self.device().id)?
        };
        let Some(CudaLaunch { grid, arguments }) = planned else { return Ok(()) };
        let CudaGrid { blocks, threads, shared_bytes } = grid;
        let extent = Extent { grid: blocks, block: threads, shared_bytes };
        self.submit_timed(op.name(), |driver, _, stream| {
            let mut parameters: SmallVec<[*mut c_void; 16]> = arguments.iter().map(CudaArgument::as_ptr).collect();
            // SAFETY: the maker of the code guarantees that the arguments fit the kernel and that it accesses the operands alone, as they are declared; their makers guarantee
            // the memory. The function is of a module of this context.
            unsafe { driver.launch(function, &extent, stream, &mut parameters) }
        })
    }

    /// Launches a reduction twice: its parts, and what joins them. Both are one command.
    fn launch_in_parts(
        &mut self,
        what: &str,
        function: FunctionHandle,
        (launch, parts): (&Launch, u32),
    ) -> Result<(), Error> {
        let Some(scratch) = self.scratch()? else { return Ok(()) };
        let [fold, join] = launch.in_parts(parts, scratch);
        self.submit_timed(what, |driver, _, stream| {
            // SAFETY: as in `launch_planned`. The scratch memory has the bytes that `in_parts` asks for, and no other command uses it
            // meanwhile, as the module `scratch` shows.
            unsafe { launch_kernel(driver, function, stream, fold) }?;
            // SAFETY: as above.
            unsafe { launch_kernel(driver, function, stream, join) }
        })
    }

    /// Launches one of our kernels that may fail, with a status for the failure.
    fn launch_fallible(&mut self, what: &str, mut launch: Launch) -> Result<(), Error> {
        let Some(function) = self.function(launch.kernel)? else { return Ok(()) };
        let of = Launched { kernel: launch.kernel, stream: self.stream, seq: self.seq, step: self.step };
        let statuses = &self.device().statuses;
        self.submit_timed(what, |driver, _, stream| {
            let slot = statuses.acquire(driver)?;
            launch.arguments.status = slot.address();
            // SAFETY: as in `launch_planned`; the status belongs to this launch alone until its event has passed.
            if let Err(failure) = unsafe { launch_kernel(driver, function, stream, launch) } {
                statuses.give_back(slot);
                return Err(failure);
            }
            // SAFETY: the event belongs to the slot and was made in this context; the stream is alive.
            match unsafe { driver.record(slot.passed(), stream) } {
                Ok(()) => statuses.launched(&self.fallible_launches, slot, of),
                // Nothing shows when it is over, so it is waited for.
                // SAFETY: the stream is alive.
                Err(_) => match unsafe { driver.synchronize_stream(stream) } {
                    Ok(()) => statuses.finish(slot, of),
                    // The slot is never reused, because the device may still write it.
                    Err(failure) => {
                        self.device().mark_lost(format!(
                            "{} gave code {} behind a kernel",
                            failure.call,
                            failure.code()
                        ));
                    }
                },
            }
            Ok(())
        })
    }

    /// The launch with the addresses at which kernels access the operands.
    #[inline]
    pub(super) fn with_kernel_addresses(&self, mut launch: Launch) -> Launch {
        for view in &mut launch.arguments.views {
            view.base = self.instance.address_map.kernel_address(view.base as usize) as u64;
        }
        launch
    }
}

/// Launches a kernel with its one parameter.
///
/// # Safety
/// * `function` is the one that the launch names, of a loaded module; its context is current.
/// * The stream is alive.
/// * The memory that the launch names is valid, and other accesses to it are ordered by streams.
#[inline]
unsafe fn launch_kernel(
    driver: Driver,
    function: FunctionHandle,
    stream: StreamHandle,
    mut launch: Launch,
) -> Result<(), DriverFailure> {
    let Launch { grid, block, shared_bytes, .. } = launch;
    let mut parameters = [ptr::from_mut(&mut launch.arguments).cast()];
    // SAFETY: each of our kernels takes one parameter of this type; the caller guarantees the rest.
    unsafe { driver.launch(function, &Extent { grid, block, shared_bytes }, stream, &mut parameters) }
}

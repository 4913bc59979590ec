//! A CUDA stream: checks a command, plans it, and hands it to the driver.
//!
//! The driver runs a stream's commands in order and later; nothing here waits for it, but where a method says so. Giving a
//! command allocates nothing in steady state: a plan is a value, a kernel's parameter is read before the driver's call
//! returns, and events and statuses are reused.

use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::blas::Blas;
use super::driver::{Driver, DriverFailure, EventHandle, Extent, FunctionHandle, StreamHandle};
use super::gemm::Gemm;
use super::plan::{Launch, plan, plan_copy, plan_fill};
use super::progress::Progress;
use super::statuses::Watched;
use super::times::Timed;
use super::world::{Core, Opened, World};
use crate::closure::InlineFn;
use crate::cpu;
use crate::device::DeviceKind;
use crate::dtype::DType;
use crate::error::{CallError, Error};
use crate::event::EventId;
use crate::fn_context::FnContext;
use crate::kernel::KernelCall;
use crate::label::Label;
use crate::op::Op;
use crate::operand::Operand;
use crate::raw::{RawCall, RawFn};
use crate::scalar::Scalar;
use crate::stream::Stream;

/// A stream of a [`CudaDevice`](super::CudaDevice). Dropping it leaves what it has been given to run; one with cuBLAS waits
/// for the device first, as cuBLAS does.
#[derive(Debug)]
pub(super) struct CudaStream {
    /// Of its device.
    index: usize,
    world: Arc<World>,
    handle: StreamHandle,
    progress: Arc<Progress>,
    /// Its kernels under way that may fail.
    watched: Arc<Watched>,
    /// The engine's numbers of the instruction that is being given.
    stream: u32,
    seq: u64,
    /// Its instructions that have no time yet, where times are wanted.
    timed: Option<Arc<Timed>>,
    /// What multiplies floats, where cuBLAS is there and wanted.
    blas: Option<Blas>,
    /// What it is and where it was issued, where somebody has said so.
    told: Option<(Arc<str>, &'static Location<'static>)>,
}

impl CudaStream {
    /// The stream of this handle, which belongs to it from now on, as does `blas`.
    pub(super) fn new(
        index: usize,
        world: Arc<World>,
        handle: StreamHandle,
        blas: Option<Blas>,
        timed: Option<Arc<Timed>>,
    ) -> CudaStream {
        let progress = Arc::new(Progress::default());
        let core = &world.cores[index];
        core.join(&progress);
        let watched = core.statuses.watch();
        CudaStream { index, world, handle, progress, watched, stream: 0, seq: 0, timed, blas, told: None }
    }

    fn core(&self) -> &Core {
        &self.world.cores[self.index]
    }

    /// Gives the driver a command, in the device's context.
    #[inline]
    fn give(
        &self,
        what: &str,
        command: impl FnOnce(Driver, &Opened, StreamHandle) -> Result<(), DriverFailure>,
    ) -> Result<(), Error> {
        let core = self.core();
        let opened = self.world.opened(self.index)?;
        let _current = core.enter(opened)?;
        command(self.world.driver, opened, self.handle).map_err(|failure| core.fail(failure))?;
        if self.world.config.sync_each_op {
            // SAFETY: the stream is alive until it is dropped.
            let over = unsafe { self.world.driver.synchronize_stream(self.handle) };
            over.map_err(|failure| core.fail_in(failure, Some(&self.instruction(what))))?;
        }
        Ok(())
    }

    /// [`give`](CudaStream::give) of what an instruction is there for: when it runs is noted, where that is wanted.
    #[inline]
    fn give_work(
        &self,
        what: &str,
        command: impl FnOnce(Driver, &Opened, StreamHandle) -> Result<(), DriverFailure>,
    ) -> Result<(), Error> {
        self.give(what, |driver, opened, stream| {
            let begun = self.begin_time();
            let given = command(driver, opened, stream);
            self.end_time(begun, given.is_ok());
            given
        })
    }

    /// Marks the begin of what comes next, where times are wanted. The device's context is current.
    #[inline]
    fn begin_time(&self) -> Option<EventHandle> {
        self.timed.as_ref().and_then(|_| self.mark_time())
    }

    /// Marks the end of what began there, if anything was given since. The device's context is current.
    #[inline]
    fn end_time(&self, begun: Option<EventHandle>, given: bool) {
        let (Some(timed), Some(start)) = (&self.timed, begun) else { return };
        let times = &self.core().times;
        match given.then(|| self.mark_time()).flatten() {
            Some(end) => times.marked(timed, (start, end), self.stream, self.seq),
            None => times.give_back(start),
        }
    }

    /// Where the stream is now; nothing where that fails, as no instruction fails for want of a time.
    #[cold]
    fn mark_time(&self) -> Option<EventHandle> {
        let marked = self.core().times.mark(self.world.driver, self.handle);
        marked.inspect_err(|failure| log::debug!("no time: {} gave code {}", failure.call, failure.code())).ok()
    }

    /// The instruction that is being given, for people.
    #[cold]
    fn instruction(&self, what: &str) -> String {
        let CudaStream { stream, seq, .. } = self;
        match &self.told {
            Some((name, site)) => format!("{name} ({what}), instruction {stream}:{seq}, issued at {site}"),
            None => format!("{what}, instruction {stream}:{seq}"),
        }
    }

    /// Launches a kernel of ours.
    #[inline]
    fn launch_planned(&self, what: &str, launch: Launch) -> Result<(), Error> {
        if launch.function.can_fail() {
            return self.launch_watched(what, launch);
        }
        self.give_work(what, |driver, opened, stream| {
            let function = function(opened, &launch)?;
            // SAFETY: the plan was made for this kernel, of operands that are as their maker promised.
            unsafe { launch_kernel(driver, function, stream, launch) }
        })
    }

    /// Multiplies matrices by cuBLAS, if that is there and can; else by the kernel that was planned.
    fn multiply(&self, dtype: DType, launch: Launch) -> Result<(), Error> {
        let products = &self.core().products;
        if let (Some(blas), Some(gemm)) = (&self.blas, Gemm::of(dtype, &launch.arguments)) {
            let mut multiplied = false;
            self.give("matmul", |_, _, _| {
                let begun = self.begin_time();
                // SAFETY: the plan was made of operands of this dtype that are as their maker promised; the context is current.
                match unsafe { blas.multiply(dtype, &gemm) } {
                    Ok(()) => multiplied = true,
                    Err(why) => why.log(),
                }
                self.end_time(begun, multiplied);
                Ok(())
            })?;
            if multiplied {
                products.cublas.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        self.launch_planned("matmul", launch)?;
        products.own.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Launches a kernel of ours that may fail, with a status to tell of it.
    fn launch_watched(&self, what: &str, mut launch: Launch) -> Result<(), Error> {
        let (name, statuses) = (launch.function, &self.core().statuses);
        self.give_work(what, |driver, opened, stream| {
            let function = function(opened, &launch)?;
            let slot = statuses.acquire(driver)?;
            launch.arguments.status = slot.address();
            // SAFETY: as in `launch_planned`; the status is the launch's alone until its event has passed.
            if let Err(failure) = unsafe { launch_kernel(driver, function, stream, launch) } {
                statuses.give_back(slot);
                return Err(failure);
            }
            // SAFETY: the event is the slot's, made in this context; the stream is alive.
            match unsafe { driver.record(slot.passed(), stream) } {
                Ok(()) => statuses.launched(&self.watched, slot, name, self.stream, self.seq),
                // Nothing shows when it is over, so it is waited for.
                // SAFETY: the stream is alive.
                Err(_) => match unsafe { driver.synchronize_stream(stream) } {
                    Ok(()) => statuses.over(slot, name, self.stream, self.seq),
                    // The slot is never free again: the device may still write it.
                    Err(failure) => {
                        self.core().lose(format!("{} gave code {} behind a kernel", failure.call, failure.code()));
                    }
                },
            }
            Ok(())
        })
    }

    /// The launch with the addresses by which kernels reach what its operands name.
    #[inline]
    fn to_kernels(&self, mut launch: Launch) -> Launch {
        for view in &mut launch.arguments.views {
            view.base = self.world.book.to_kernels(view.base as usize) as u64;
        }
        launch
    }

    /// Errs where a copy would be staged by the driver and that is not wanted.
    fn check_pinned(&self, operand: &Operand) -> Result<(), Error> {
        let address = operand.ptr().addr();
        if self.world.config.strict_pinned && self.world.book.home(address).is_none() {
            return Err(Error::Pageable { device: self.core().id, address });
        }
        Ok(())
    }

    /// Errs where the device's kernels do not reach the memory.
    fn check_reach(&self, operand: &Operand) -> Result<(), Error> {
        let address = operand.ptr().addr();
        if self.world.reaches(self.index, address) {
            Ok(())
        } else {
            Err(Error::OutOfReach { device: self.core().id, address })
        }
    }
}

/// Makes the context of a bound thread current again when it is dropped.
struct Again<'a> {
    driver: Driver,
    opened: &'a Opened,
}

impl Drop for Again<'_> {
    fn drop(&mut self) {
        // SAFETY: it was bound to this thread before, and a stream of it is in use. What fails here fails the next call.
        let _ = unsafe { self.opened.context.bind_again(self.driver) };
    }
}

/// The kernel of a launch; a name that has none is an invalid argument, as the driver would say.
#[inline]
fn function(opened: &Opened, launch: &Launch) -> Result<FunctionHandle, DriverFailure> {
    opened.functions.get(launch.function).ok_or(DriverFailure::NO_FUNCTION)
}

/// Launches a kernel with its one parameter.
///
/// # Safety
/// * `function` is the one that the launch names, of a loaded module; its context is current.
/// * The stream is alive.
/// * The memory that the launch names is there, and nothing else uses it against the order of streams.
#[inline]
unsafe fn launch_kernel(
    driver: Driver,
    function: FunctionHandle,
    stream: StreamHandle,
    mut launch: Launch,
) -> Result<(), DriverFailure> {
    let Launch { grid, block, shared_bytes, .. } = launch;
    let mut parameters = [ptr::from_mut(&mut launch.arguments).cast()];
    // SAFETY: each of our kernels takes one parameter of this type; the rest is the caller's promise.
    unsafe { driver.launch(function, &Extent { grid, block, shared_bytes }, stream, &mut parameters) }
}

impl Stream for CudaStream {
    fn begin(&mut self, label: &Label) {
        self.number(label.stream, label.seq);
        self.told = Some((Arc::clone(&label.what), label.site));
    }

    #[inline]
    fn number(&mut self, stream: u32, seq: u64) {
        (self.stream, self.seq) = (stream, seq);
        self.told = None;
        self.progress.begin(stream, seq);
    }

    fn launch(&mut self, call: &mut KernelCall<'_>) -> Result<(), Error> {
        if call.kernel.device != DeviceKind::Cuda {
            return Err(Error::WrongDevice { kernel: call.kernel.device, device: self.core().id });
        }
        self.core().check()?;
        // What the kernel's own check is shown are addresses of the device: the host makes no slice of them.
        call.operands.iter_mut().for_each(Operand::set_shared);
        (call.kernel.run)(call)?;
        call.share_overlapping()?;
        match plan(call)?.map(|launch| self.to_kernels(launch)) {
            Some(launch) if call.kernel.op == Op::MatMul => self.multiply(call.kernel.dtype, launch),
            Some(launch) => self.launch_planned(call.kernel.op.name(), launch),
            None => Ok(()),
        }
    }

    /// Contiguous views of any memory are copied by the driver, between devices too; others by a kernel, which must reach
    /// both sides. Where one side is pageable memory the driver stages it, and the call waits for the stream.
    fn copy(&mut self, source: &Operand, target: &mut Operand) -> Result<(), Error> {
        self.core().check()?;
        // An empty view has an address that is nobody's.
        if !cpu::check_copy(source, target)? || source.layout().elements() == 0 {
            return Ok(());
        }
        self.check_pinned(source)?;
        self.check_pinned(target)?;
        if !(source.layout().is_contiguous() && target.layout().is_contiguous()) {
            self.check_reach(source)?;
            self.check_reach(target)?;
            return match plan_copy(source, target) {
                Some(launch) => self.launch_planned("copy", self.to_kernels(launch)),
                None => Ok(()),
            };
        }
        let bytes = source.layout().elements() * source.dtype().size();
        let (from, to) = (source.ptr().addr() as u64, target.ptr().addr() as u64);
        // SAFETY: operands promise their memory for as long as the command needs it; both were checked to have these
        // bytes and not to overlap; the stream is alive and its context is current.
        self.give_work("copy", |driver, _, stream| unsafe { driver.copy(to, from, bytes, stream) })
    }

    fn fill(&mut self, target: &mut Operand, value: Scalar) -> Result<(), Error> {
        self.core().check()?;
        cpu::check_fill(target, value)?;
        match plan_fill(target, value)? {
            Some(launch) => self.launch_planned("fill", self.to_kernels(launch)),
            None => Ok(()),
        }
    }

    fn call(&mut self, _: &mut InlineFn, operands: &mut [Operand]) -> Result<(), CallError> {
        FnContext::new(operands)?;
        Err(Error::HostFunction { device: self.core().id }.into())
    }

    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand]) -> Result<(), CallError> {
        FnContext::new(operands)?;
        // A slice would be of memory that the host does not reach, or that queued commands still write.
        for operand in operands.iter_mut() {
            operand.set_shared();
            operand.move_to(self.world.book.to_kernels(operand.ptr().addr()));
        }
        let core = self.core();
        let opened = self.world.opened(self.index)?;
        let current = core.enter(opened)?;
        let (context, stream) = (opened.context.handle.raw(), self.handle.raw());
        let begun = self.begin_time();
        let result = {
            // Also where the function panics.
            let _again = Again { driver: self.world.driver, opened };
            function(&RawCall { device: core.id, context, stream, operands })
        };
        drop(current);
        if let Err(error) = result {
            self.end_time(begun, false);
            return Err(CallError::Function(error));
        }
        // The function's commands count as one of this stream.
        let counted = self.give("call", |_, _, _| {
            self.end_time(begun, true);
            Ok(())
        });
        counted.map_err(CallError::Device)
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        let World { events, marks, .. } = &*self.world;
        // A released event is refused before the driver is told.
        events.is_recorded(event)?;
        self.give("record", |driver, _, stream| {
            let raw = marks.raw(event, self.index, || driver.create_event(false))?;
            // SAFETY: the event lives as long as the world and was made in this context; the stream is alive.
            unsafe { driver.record(raw, stream) }?;
            marks.note(event, raw, self.index, &self.progress);
            Ok(())
        })?;
        events.record(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        let unrecorded = Error::EventNotRecorded { event, device: self.core().id };
        if !self.world.events.is_recorded(event)? {
            return Err(unrecorded);
        }
        let Some(mark) = self.world.marks.find(event) else {
            // Released since, and its place taken by another.
            self.world.events.is_recorded(event)?;
            return Err(unrecorded);
        };
        // What a lost device has recorded never passes.
        self.world.cores[mark.device].check()?;
        // SAFETY: the event lives as long as the world, of whichever device; the stream is alive.
        self.give("wait", |driver, _, stream| unsafe { driver.stream_wait(stream, mark.raw) })
    }

    /// Waits for the device. A kernel that failed is told by [`take_failures`](crate::Device::take_failures) alone.
    fn synchronize(&mut self) -> Result<(), Error> {
        let launched = self.progress.launched();
        // SAFETY: the stream is alive.
        self.give("synchronize", |driver, _, stream| unsafe { driver.synchronize_stream(stream) })?;
        self.progress.pass(launched);
        Ok(())
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let Some(opened) = self.world.opened_already(self.index) else { return };
        let blas = self.blas.take();
        let Ok(_current) = self.core().enter(opened) else {
            // In no context, or another's, it must not end.
            return std::mem::forget(blas);
        };
        drop(blas);
        // SAFETY: the stream is alive, and gone with this.
        let _ = unsafe { self.world.driver.destroy_stream(self.handle) };
    }
}

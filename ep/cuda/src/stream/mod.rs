//! A CUDA stream: checks a command, plans it, and submits it to the driver.
//!
//! Layer: uses `driver`, `source`, `plan`, `elementwise`, `fused` and `instance`; is used by no other folder.
//!
//! The driver runs a stream's commands in order, later. Nothing here waits for it, unless a method says so. In steady state, submitting a
//! command allocates nothing but what the code of a registered op does: a plan is a value, a kernel's parameter is read before the driver's call returns, and events and statuses
//! are reused.

pub(crate) mod blas;
mod blocks;
mod capture;
mod commands;
mod graphs;
mod lanes;
mod launch;
mod scratch;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use streamvm_ep::backend::check::{check_copy, check_fill};
use streamvm_ep::{
    BlockStart, CallError, CommandSequence, DType, DeviceKind, Error, EventId, FnContext, FusedKernel, GraphBlocks,
    GraphKey, GraphStart, Graphs, InlineFn, KernelCall, Label, LoopsRun, Op, Operand, Prepared, ProgramStep, RawCall,
    RawFn, Scalar, SegmentRun, SequenceError, Site, StepNote, Stream,
};

use crate::driver::error_codes::ends_device;
use crate::driver::nvtx;
use crate::driver::{Driver, DriverFailure, Extent, StreamHandle};
use crate::elementwise::tensor_code;
use crate::fused::plan_views;
use crate::instance::driver_events::EventRecord;
use crate::instance::progress::Progress;
use crate::instance::statuses::InFlightLaunches;
use crate::instance::timing::{Start, StreamTiming, Timing};
use crate::instance::{DeviceState, Instance, Opened};
use crate::plan::gemm::Gemm;
use crate::plan::{Launch, plan, plan_copy, plan_fill};
use crate::stream::blas::Blas;
use crate::stream::blocks::Blocks;
use crate::stream::capture::Capture;
use crate::stream::graphs::KeptGraphs;
use crate::stream::lanes::Lanes;
use crate::stream::scratch::Scratch;

/// A stream of a [`CudaDevice`](crate::CudaDevice). Its queued commands still run after it is dropped. Dropping a stream with cuBLAS
/// waits for the device, because cuBLAS does; dropping one with scratch memory waits for its commands.
#[derive(Debug)]
pub(super) struct CudaStream {
    /// The index of its device.
    index: usize,
    instance: Arc<Instance>,
    handle: StreamHandle,
    progress: Arc<Progress>,
    /// Its launches in flight that may fail.
    fallible_launches: Arc<InFlightLaunches>,
    /// The engine's numbers of the current instruction.
    stream: u32,
    seq: u64,
    /// The step of a program that the current command belongs to.
    step: Option<ProgramStep>,
    /// The step that the host runs between its commands.
    step_note: Arc<StepNote>,
    /// The times of its instructions, if requested.
    timing: Option<Arc<StreamTiming>>,
    /// cuBLAS for products of floats, if it is available and not disabled.
    blas: Option<Blas>,
    /// A cuBLAS that is not used any longer, because it could not be pointed back to this stream. Graphs of the stream have the address of its memory.
    retired_blas: Option<Blas>,
    /// Its graphs.
    graphs: KeptGraphs,
    /// The commands that are captured now instead of running.
    capture: Option<Capture>,
    /// What blocks of its graphs need.
    blocks: Blocks,
    /// Its side streams, and which of its lanes is current.
    lanes: Lanes,
    /// Scratch memory of its own commands; side streams have some of theirs.
    scratch: Option<Scratch>,
    /// The driver's priority of its streams.
    priority: i32,
    /// Name and source location of the current instruction, if they were set.
    label: Option<(Arc<str>, Site)>,
}

impl CudaStream {
    /// A stream that owns `handle`, which has this priority, and `blas` from now on.
    pub(super) fn new(
        index: usize,
        instance: Arc<Instance>,
        (handle, priority): (StreamHandle, i32),
        blas: Option<Blas>,
        timing: Option<Arc<StreamTiming>>,
    ) -> CudaStream {
        let progress = Arc::new(Progress::default());
        let device = &instance.devices[index];
        device.add_stream(&progress);
        let fallible_launches = device.statuses.add_stream();
        CudaStream {
            index,
            instance,
            handle,
            progress,
            fallible_launches,
            stream: 0,
            seq: 0,
            step: None,
            step_note: Arc::default(),
            timing,
            blas,
            retired_blas: None,
            graphs: KeptGraphs::default(),
            capture: None,
            blocks: Blocks::default(),
            lanes: Lanes::default(),
            scratch: None,
            priority,
            label: None,
        }
    }

    fn device(&self) -> &DeviceState {
        &self.instance.devices[self.index]
    }

    /// The driver's stream for the next command: that of the current lane, or of the body of the block that is captured.
    #[inline]
    fn current_handle(&self) -> StreamHandle {
        let of_block = self.capture.as_ref().and_then(|capture| self.blocks.body_stream(capture.blocks.as_ref()?));
        of_block.unwrap_or_else(|| self.lanes.current_handle(self.handle))
    }

    /// Calls the driver for a command of the current lane or block, in the device's context.
    #[inline]
    fn submit(
        &self,
        what: &str,
        command: impl FnOnce(Driver, &Opened, StreamHandle) -> Result<(), DriverFailure>,
    ) -> Result<(), Error> {
        let device = self.device();
        let opened = self.instance.opened(self.index)?;
        let _current = device.enter(opened)?;
        let stream = self.current_handle();
        command(self.instance.driver, opened, stream).map_err(|failure| device.fail(failure))?;
        if self.instance.config.sync_each_op {
            // SAFETY: the stream is alive until `self` is dropped.
            let over = unsafe { self.instance.driver.synchronize_stream(self.handle) };
            over.map_err(|failure| device.fail_in(failure, Some(&self.instruction(what))))?;
        }
        Ok(())
    }

    /// [`submit`](CudaStream::submit) for the actual work of an instruction: its time is measured, if requested.
    #[inline]
    fn submit_timed(
        &self,
        what: &str,
        command: impl FnOnce(Driver, &Opened, StreamHandle) -> Result<(), DriverFailure>,
    ) -> Result<(), Error> {
        let _range = nvtx::range(what);
        self.submit(what, |driver, opened, stream| {
            let begun = self.begin_time();
            let submitted = command(driver, opened, stream);
            self.end_time(begun, submitted.is_ok());
            submitted
        })
    }

    /// The error for a wait that the driver refused. Its code may tell that the device of the event is lost, which nobody has noticed yet: then this device goes on.
    #[cold]
    fn refused_wait(&self, failure: DriverFailure, record: EventRecord) -> Error {
        let recorder = &self.instance.devices[record.device];
        if record.device != self.index && ends_device(failure.code()) {
            let current = self.instance.opened(record.device).and_then(|opened| recorder.enter(opened));
            // SAFETY: the event lives as long as the instance.
            let queried = current.map(|_current| unsafe { self.instance.driver.query_event(record.handle) });
            if let Ok(Err(failure)) = queried {
                recorder.fail(failure);
            }
            if let Err(lost) = recorder.check() {
                return lost;
            }
        }
        self.device().fail(failure)
    }

    /// Marks the start of the next command, if times are requested. The device's context must be current.
    #[inline]
    fn begin_time(&self) -> Option<Start> {
        // A capture runs nothing; the launch of its graph is timed. Commands of lanes overlap; all of them together are timed.
        let is_timed = self.capture.is_none() && !self.lanes.are_open();
        self.timing.as_ref().filter(|_| is_timed).and_then(|_| self.record_time(Timing::begin))
    }

    /// Marks the end of the command that started at `begun`, if it was submitted. The device's context must be current.
    #[inline]
    fn end_time(&self, begun: Option<Start>, submitted: bool) {
        let (Some(stream_timing), Some(start)) = (&self.timing, begun) else { return };
        let timing = &self.device().timing;
        match submitted.then(|| self.record_time(Timing::record)).flatten() {
            Some(end) => timing.add(stream_timing, (start, end), self.stream, self.seq),
            None => timing.cancel(start),
        }
    }

    /// Records a timing event on the stream. `None` if that fails, because a missing time must not fail an instruction.
    #[cold]
    fn record_time<E>(
        &self,
        record: impl FnOnce(&Timing, Driver, StreamHandle) -> Result<E, DriverFailure>,
    ) -> Option<E> {
        let recorded = record(&self.device().timing, self.instance.driver, self.handle);
        recorded.inspect_err(|failure| log::debug!("no time: {} gave code {}", failure.call, failure.code())).ok()
    }

    /// The current instruction, for messages.
    #[cold]
    fn instruction(&self, what: &str) -> String {
        let CudaStream { stream, seq, .. } = self;
        let what = match self.step {
            Some(step) => step.to_string(),
            None => what.to_owned(),
        };
        match &self.label {
            Some((name, site)) => format!("{name} ({what}), instruction {stream}:{seq}, issued at {site}"),
            None => format!("{what}, instruction {stream}:{seq}"),
        }
    }

    /// Multiplies matrices by cuBLAS if it is available and supports the product; otherwise by the planned kernel.
    fn multiply(&mut self, dtype: DType, launch: Launch) -> Result<(), Error> {
        self.make_side_blas();
        let blas = self.lanes.current_blas(self.blas.as_ref());
        if let (Some(blas), Some(gemm)) = (blas, Gemm::of(dtype, &launch.arguments)) {
            if let Some(capture) = self.capture.as_mut().filter(|_| !blas.has_workspace()) {
                // Captured without memory of ours, cuBLAS would put allocations into the graph, which then cannot be updated.
                capture.failed = true;
                return Ok(());
            }
            let mut multiplied = false;
            let _range = nvtx::range("matmul");
            self.submit("matmul", |_, _, _| {
                let begun = self.begin_time();
                // SAFETY: the plan was made from operands of this dtype whose makers guarantee their memory; the context is current.
                match unsafe { blas.multiply(dtype, &gemm) } {
                    Ok(()) => multiplied = true,
                    Err(why) => why.log(),
                }
                self.end_time(begun, multiplied);
                Ok(())
            })?;
            if multiplied {
                match &mut self.capture {
                    Some(capture) => capture.products.cublas += 1,
                    None => _ = self.device().products.cublas.fetch_add(1, Ordering::Relaxed),
                }
                return Ok(());
            }
        }
        self.launch_planned("matmul", launch)?;
        match &mut self.capture {
            Some(capture) => capture.products.own += 1,
            None => _ = self.device().products.own.fetch_add(1, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Returns an error if the driver would stage the copy and staging is disabled.
    fn check_pinned(&self, operand: &Operand) -> Result<(), Error> {
        let address = operand.ptr().addr();
        if self.instance.config.strict_pinned && self.instance.address_map.owner(address).is_none() {
            return Err(Error::Pageable { device: self.device().id, address });
        }
        Ok(())
    }

    /// Returns an error if the device's kernels cannot access the memory.
    fn check_reach(&self, operand: &Operand) -> Result<(), Error> {
        let address = operand.ptr().addr();
        if self.instance.reaches(self.index, address) {
            Ok(())
        } else {
            Err(Error::OutOfReach { device: self.device().id, address })
        }
    }
}

/// A guard that makes the context of a bound thread current again when it is dropped.
struct RebindContext<'a> {
    driver: Driver,
    opened: &'a Opened,
}

impl Drop for RebindContext<'_> {
    fn drop(&mut self) {
        // SAFETY: the context was bound to this thread before, and a stream of it is in use. The next call reports a failure.
        let _ = unsafe { self.opened.context.bind_again(self.driver) };
    }
}

// SAFETY: it hands operands to the checks of kernels and to functions over the driver's stream after it has marked them as shared, so that they give no
// slices. A launch is planned after the kernel's check, which may exchange operands, and the plan checks the accesses. The driver has completed a
// command before an event that was recorded after it. Graphs keep addresses of buffers, and are launched only over buffers that a call has given again.
unsafe impl Stream for CudaStream {
    fn begin(&mut self, label: &Label) {
        self.number(label.stream, label.seq);
        self.label = Some((Arc::clone(&label.what), label.site));
    }

    #[inline]
    fn number(&mut self, stream: u32, seq: u64) {
        (self.stream, self.seq, self.step) = (stream, seq, None);
        self.label = None;
        // If the device is lost by this, the next command says so.
        let _ = self.leave_lanes_and_capture();
        self.progress.begin(stream, seq);
    }

    fn label(&self) -> Option<Label> {
        let (what, site) = self.label.as_ref()?;
        Some(Label { what: what.clone(), site: *site, ..Label::new(self.stream, self.seq, "") })
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        Some(self.step_note.clone())
    }

    fn after_host_code(&mut self) {
        if let Ok(opened) = self.instance.opened(self.index) {
            drop(RebindContext { driver: self.instance.driver, opened });
        }
    }

    fn begin_step(&mut self, step: ProgramStep, _: &[usize]) {
        self.step = Some(step);
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        if call.kernel.device != DeviceKind::CUDA {
            return Err(Error::WrongDevice { kernel: call.kernel.device, device: self.device().id });
        }
        self.device().check()?;
        if self.capture.is_some() && self.leaves_out(&call.operands.iter().collect::<SmallVec<[&Operand; 4]>>()) {
            return Ok(());
        }
        // The operands have device addresses, so the kernel's host-side check must not make slices of them.
        call.operands.iter_mut().for_each(Operand::set_shared);
        call.run(None)?;
        call.mark_overlapping_shared()?;
        if let Some(code) = tensor_code(call.kernel.op, call.kernel.dtype) {
            return self.launch_registered(call, code);
        }
        match plan(call)?.map(|launch| self.with_kernel_addresses(launch)) {
            Some(launch) if call.kernel.op == Op::MatMul => self.multiply(call.kernel.dtype, launch),
            Some(launch) => self.launch_planned(call.kernel.op.name(), launch),
            None => Ok(()),
        }
    }

    /// Contiguous views of any memory are copied by the driver, also between devices. Other views are copied by a kernel, which must be
    /// able to access both sides. If one side is pageable memory, the driver stages it and the call waits for the stream.
    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        self.device().check()?;
        if self.leaves_out(&[source, target]) {
            return Ok(());
        }
        // The address of an empty view may belong to no region.
        if !check_copy(source, target)? || source.layout().elements() == 0 {
            return Ok(());
        }
        self.check_pinned(source)?;
        self.check_pinned(target)?;
        if let Some(capture) = &mut self.capture {
            // The driver stages pageable memory within the call, which a graph cannot repeat.
            let pageable = |operand: &Operand| self.instance.address_map.owner(operand.ptr().addr()).is_none();
            capture.failed |= pageable(source) || pageable(target);
            if capture.failed {
                return Ok(());
            }
        }
        if !(source.layout().is_contiguous() && target.layout().is_contiguous()) {
            self.check_reach(source)?;
            self.check_reach(target)?;
            return match plan_copy(source, target) {
                Some(launch) => self.launch_planned("copy", self.with_kernel_addresses(launch)),
                None => Ok(()),
            };
        }
        let bytes = source.layout().elements() * source.dtype().size();
        let (from, to) = (source.ptr().addr() as u64, target.ptr().addr() as u64);
        // SAFETY: the makers of the operands guarantee their memory as long as the command needs it. Both were checked to have these
        // bytes and not to overlap. The stream is alive and its context is current.
        self.submit_timed("copy", |driver, _, stream| unsafe { driver.copy(to, from, bytes, stream) })
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        self.device().check()?;
        if self.leaves_out(&[target]) {
            return Ok(());
        }
        check_fill(target, value)?;
        match plan_fill(target, value)? {
            Some(launch) => self.launch_planned("fill", self.with_kernel_addresses(launch)),
            None => Ok(()),
        }
    }

    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        CommandSequence::of(prepared)?.execute(self, operands, run)
    }

    fn call(&mut self, _: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        FnContext::new(operands)?;
        Err(Error::HostFunction { device: self.device().id }.into())
    }

    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        FnContext::new(operands)?;
        self.leave_lanes_and_capture().map_err(CallError::Device)?;
        // A slice would be of memory that the host cannot access, or that queued commands still write.
        for operand in operands.iter_mut() {
            operand.set_shared();
            let address = self.instance.address_map.kernel_address(operand.ptr().addr());
            // SAFETY: the map has the address at which the devices of the instance reach the same memory.
            unsafe { operand.set_address(address) };
        }
        let device = self.device();
        let opened = self.instance.opened(self.index)?;
        let current = device.enter(opened)?;
        let (context, stream) = (opened.context.handle.raw(), self.handle.raw());
        let _range = nvtx::range("a function");
        let begun = self.begin_time();
        let result = {
            // Restores the context also if the function panics.
            let _rebind = RebindContext { driver: self.instance.driver, opened };
            function(&RawCall { device: device.id, context, stream, operands })
        };
        drop(current);
        if let Err(error) = result {
            self.end_time(begun, false);
            return Err(CallError::Function(error));
        }
        // The function's commands count as one command of this stream.
        let counted = self.submit("call", |_, _, _| {
            self.end_time(begun, true);
            Ok(())
        });
        counted.map_err(CallError::Device)
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.leave_lanes_and_capture()?;
        let Instance { events, driver_events, .. } = &*self.instance;
        // A released event is refused before the driver is called.
        events.is_recorded(event)?;
        self.submit("record", |driver, _, stream| {
            let handle = driver_events.handle_on(event, self.index, || driver.create_event(false))?;
            // SAFETY: the event lives as long as the instance and was made in this context; the stream is alive.
            unsafe { driver.record(handle, stream) }?;
            driver_events.set_recorded(event, handle, self.index, &self.progress);
            Ok(())
        })?;
        events.record(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        self.leave_lanes_and_capture()?;
        let unrecorded = Error::EventNotRecorded { event, device: self.device().id };
        if !self.instance.events.is_recorded(event)? {
            return Err(unrecorded);
        }
        let Some(record) = self.instance.driver_events.last_record(event) else {
            // The event was released meanwhile, and its slot reused.
            self.instance.events.is_recorded(event)?;
            return Err(unrecorded);
        };
        // A record of a lost device never passes.
        self.instance.devices[record.device].check()?;
        let mut refused = None;
        self.submit("wait", |driver, _, stream| {
            // SAFETY: the event lives as long as the instance, on any device; the stream is alive.
            refused = unsafe { driver.stream_wait(stream, record.handle) }.err();
            Ok(())
        })?;
        refused.map_or(Ok(()), |failure| Err(self.refused_wait(failure, record)))
    }

    /// Waits for the device. Failures of kernels are reported only by [`take_failures`](streamvm_ep::Device::take_failures).
    fn synchronize(&mut self) -> Result<(), Error> {
        self.leave_lanes_and_capture()?;
        let launched = self.progress.launched();
        // SAFETY: the stream is alive.
        self.submit("synchronize", |driver, _, stream| unsafe { driver.synchronize_stream(stream) })?;
        self.progress.pass(launched);
        Ok(())
    }
}

impl Graphs for CudaStream {
    fn launch_fused(&mut self, kernel: &FusedKernel, views: &mut [Operand<'static>]) -> Result<bool, Error> {
        self.device().check()?;
        let Some(loaded) = self.device().fused_kernels.get(kernel) else { return Ok(false) };
        if self.capture.is_some() && self.leaves_out(&views.iter().collect::<SmallVec<[&Operand; 8]>>()) {
            return Ok(true);
        }
        for view in views.iter().filter(|view| view.layout().elements() > 0) {
            self.check_reach(view)?;
        }
        let Some(mut launch) = plan_views(&loaded.views, views)? else { return Ok(true) };
        for view in &mut launch.arguments.views[..views.len()] {
            view.base = self.instance.address_map.kernel_address(view.base as usize) as u64;
        }
        self.submit_timed("fused steps", |driver, _, stream| {
            let extent = Extent { grid: [launch.blocks, 1, 1], block: [launch.threads, 1, 1], shared_bytes: 0 };
            let mut parameters = [ptr::from_mut(&mut launch.arguments).cast()];
            // SAFETY: the kernel was loaded in this context and stays so while `kernel` is alive. It takes as many views of this parameter as
            // `plan_views` has found to be its own, and accesses these as declared, so their makers guarantee the memory. The stream is alive.
            unsafe { driver.launch(loaded.function, &extent, stream, &mut parameters) }
        })?;
        Ok(true)
    }

    fn begin_graph(&mut self, key: GraphKey<'_>, buffers: &[Operand<'static>]) -> Result<GraphStart, Error> {
        self.start_graph(key, buffers, None)
    }

    fn begin_block_graph(
        &mut self,
        key: GraphKey<'_>,
        buffers: &[Operand<'static>],
        blocks: GraphBlocks,
    ) -> Result<GraphStart, Error> {
        self.start_graph(key, buffers, Some(blocks))
    }

    fn begin_block(&mut self, start: BlockStart, condition: &Operand<'static>) -> Result<(), Error> {
        self.open_block(start, condition)
    }

    fn begin_else(&mut self) -> Result<(), Error> {
        self.open_else()
    }

    fn end_block(&mut self) -> Result<(), Error> {
        self.close_block()
    }

    fn loops_run(&mut self) -> LoopsRun {
        self.read_loops()
    }

    fn end_graph(&mut self, whole: bool) -> Result<bool, Error> {
        self.finish_graph(whole)
    }

    fn begin_lanes(&mut self, lanes: usize) -> Result<(), Error> {
        self.fork(lanes)
    }

    fn enter_lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error> {
        self.enter(lane, behind)
    }

    fn mark_lane(&mut self, mark: usize) -> Result<(), Error> {
        self.mark(mark)
    }

    fn end_lanes(&mut self) -> Result<(), Error> {
        self.join()
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let _ = self.leave_lanes_and_capture();
        let Some(opened) = self.instance.opened_already(self.index) else { return };
        let blas = (self.blas.take(), self.retired_blas.take());
        let device = &self.instance.devices[self.index];
        let entered = if device.runs_on() { None } else { device.enter(opened).ok() };
        let Some(_current) = entered else {
            // They must be destroyed only in their own context, and their end would wait for commands that do not end.
            self.lanes.forget();
            return std::mem::forget(blas);
        };
        drop(blas);
        self.free_scratch();
        self.lanes.destroy(self.instance.driver);
        self.blocks.destroy(self.instance.driver);
        self.destroy_graphs();
        // SAFETY: the stream is alive, and is not used after this drop.
        let _ = unsafe { self.instance.driver.destroy_stream(self.handle) };
    }
}

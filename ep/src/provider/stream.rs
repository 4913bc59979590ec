//! Streams: ordered queues of commands on one device.

use std::sync::Arc;

use crate::call::closure::InlineFn;
use crate::call::commands::Commands;
use crate::call::fn_context::FnContext;
use crate::call::fused::FusedKernel;
use crate::call::graph::{BlockStart, GraphBlocks, GraphKey, GraphStart, LoopsRun};
use crate::call::kernel::KernelCall;
use crate::call::label::{Label, ProgramStep};
use crate::call::operand::Operand;
use crate::call::raw::RawFn;
use crate::call::step_note::StepNote;
use crate::errors::call_error::CallError;
use crate::errors::error::Error;
use crate::names::event_id::EventId;
use crate::tensor::scalar::Scalar;

/// An ordered queue of commands on one device.
///
/// Each command starts after the previous command of the stream has completed. Whether a call returns before its command has completed
/// depends on the device: a CPU stream runs the command in the calling thread, any other stream queues it. A stream is used by one thread
/// at a time, but not always by the same one.
///
/// A command that returns an error has not been queued and has written nothing, unless the error says otherwise. A queued command that
/// fails later is reported by [`Device::take_failures`](crate::Device::take_failures).
///
/// The methods take `Operand<'static>`, because a command may run later than the call that queues it. The maker of such an operand guarantees
/// its memory until every command that uses it has completed ([`Operand::new`]).
///
/// # Safety
///
/// * An implementation uses an operand, and keeps it, only until the command that it was given for has completed: until the call returns,
///   if it runs the command within the call; otherwise at most until an event that was recorded after the command has passed, or
///   [`synchronize`](Stream::synchronize) has returned.
/// * It accesses the operand's elements alone, and writes them only if the operand's access writes.
/// * It hands operands to no other code than kernels ([`KernelFn`](crate::KernelFn)), closures ([`FnContext`](crate::FnContext)),
///   functions over the driver's stream, and streams for which these duties hold.
pub unsafe trait Stream: Send {
    /// Sets the instruction that the next commands belong to, until the next call. A stream that reports nothing ignores it.
    fn begin(&mut self, _label: &Label) {}

    /// Like [`begin`](Stream::begin), but passes only the numbers that a stream needs to report which command failed late. Cheap, so that
    /// an engine without an observer can call it for each instruction. A stream that reports nothing ignores it.
    fn number(&mut self, _stream: u32, _seq: u64) {}

    /// Sets the step of a program that the next commands belong to, until the next [`begin`](Stream::begin) or
    /// [`number`](Stream::number). Operand `i` of these commands is a view of operand `buffers[i]` of the instruction. A stream that reports
    /// nothing ignores it.
    fn begin_step(&mut self, _step: ProgramStep, _buffers: &[usize]) {}

    /// Where the stream notes the step of a program that it is at; `None` for a stream that runs no steps in the calling thread. It may be read by
    /// any thread at any time.
    fn step_note(&self) -> Option<Arc<StepNote>> {
        None
    }

    /// Runs a kernel.
    ///
    /// # Errors
    ///
    /// * [`Error::WrongDevice`] for a kernel of another kind of device;
    /// * [`Error::Kernel`] for operands that the kernel refuses and for failures in it. Operands whose bytes overlap, one of them
    ///   written, are refused, except an output that is exactly the view of an input of an [elementwise](crate::Op::is_elementwise) op.
    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error>;

    /// Copies `source` to `target`: same dtype and shape, any strides on either side.
    ///
    /// # Errors
    ///
    /// [`Error::CopyMismatch`], [`Error::NotWritable`], [`Error::Overlap`] (copying a view onto
    /// itself is allowed and does nothing), [`Error::OverlapsItself`], [`Error::Misaligned`].
    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error>;

    /// Writes `value` to every element of `target`.
    ///
    /// # Errors
    ///
    /// [`Error::ScalarDoesNotFit`] by the rule of [`Scalar::fits`], [`Error::NotWritable`],
    /// [`Error::OverlapsItself`], [`Error::Misaligned`].
    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error>;

    /// Computes the steps of a group by the kernel that [`Device::fuse`](crate::Device::fuse) has made of it, over the views of the group in their
    /// order. Returns `false`, and has queued nothing, if the stream has no such kernel, as the provided method does: then the caller queues the steps
    /// one by one.
    ///
    /// # Errors
    ///
    /// [`Error::FusedViews`] if the views are not those of the group: their number, the size of their elements, their shape or their accesses differ,
    /// one is misaligned, or one that is written overlaps another one. Errors of the driver.
    fn launch_fused(&mut self, _kernel: &FusedKernel, _views: &mut [Operand<'static>]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Announces the commands that the caller would queue next: whenever it gives this key with buffers at these addresses, they are the
    /// same commands, and their operands lie within the buffers. A stream that keeps no graphs returns [`GraphStart::Queue`], as the
    /// provided method does.
    ///
    /// After [`GraphStart::Capturing`] the caller makes no other calls than [`begin_step`](Stream::begin_step),
    /// [`launch`](Stream::launch), [`launch_fused`](Stream::launch_fused), [`copy`](Stream::copy), [`fill`](Stream::fill) and those of lanes
    /// ([`begin_lanes`](Stream::begin_lanes) to [`end_lanes`](Stream::end_lanes)), from the same thread, until
    /// [`end_graph`](Stream::end_graph), which it always calls. At any other call the stream gives the capture up, and none of its commands
    /// runs.
    ///
    /// # Errors
    ///
    /// The device is lost. Otherwise a graph that cannot be launched or captured is not an error: the stream returns
    /// [`GraphStart::Queue`].
    fn begin_graph(&mut self, _key: GraphKey<'_>, _buffers: &[Operand<'static>]) -> Result<GraphStart, Error> {
        Ok(GraphStart::Queue)
    }

    /// As [`begin_graph`](Stream::begin_graph), for commands of which some run only if a condition in memory of the device is true, or as long as it is
    /// ([`begin_block`](Stream::begin_block) to [`end_block`](Stream::end_block)). The stream launches all of them by one call, and the device decides. If a
    /// block is a loop, the caller asks [`loops_run`](Stream::loops_run) once they have run, and before it announces other commands with loops.
    ///
    /// After [`GraphStart::Capturing`] the caller may make these calls, too, and none for lanes; it begins a loop only if it has announced one
    /// ([`GraphBlocks::rounds`]). The first launch on a stream may wait for the device. A stream that cannot decide on the device returns
    /// [`GraphStart::Queue`], as the provided method does.
    ///
    /// # Errors
    ///
    /// As for [`begin_graph`](Stream::begin_graph).
    fn begin_block_graph(
        &mut self,
        _key: GraphKey<'_>,
        _buffers: &[Operand<'static>],
        _blocks: GraphBlocks,
    ) -> Result<GraphStart, Error> {
        Ok(GraphStart::Queue)
    }

    /// Begins a block of captured commands. `condition` is one bool, which is read where the block begins, and at the end of each round of a loop.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then the capture gives no graph.
    fn begin_block(&mut self, _start: BlockStart, _condition: &Operand<'static>) -> Result<(), Error> {
        Ok(())
    }

    /// Ends the commands of an `if` whose condition is true, and begins those for the other case.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then the capture gives no graph.
    fn begin_else(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Ends the innermost block of captured commands.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then the capture gives no graph.
    fn end_block(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// How the loops of the last graph with loops have run. The caller has waited for the graph.
    fn loops_run(&mut self) -> LoopsRun {
        LoopsRun::default()
    }

    /// Ends the capture that [`begin_graph`](Stream::begin_graph) or [`begin_block_graph`](Stream::begin_block_graph) began. If the commands are `whole`, makes a graph of them, keeps it and
    /// launches it. Returns whether it was launched; if it was not, none of the commands was queued, and the caller queues them one by
    /// one.
    ///
    /// # Errors
    ///
    /// The device is lost.
    fn end_graph(&mut self, _whole: bool) -> Result<bool, Error> {
        Ok(false)
    }

    /// Begins commands on `lanes` lanes, which a device may run side by side: lane 0 is this stream, and the others are side streams of it. Commands
    /// are queued on lane 0 until [`enter_lane`](Stream::enter_lane) names another one. Each lane comes behind all earlier commands of this stream. A stream
    /// without side streams queues the commands of all lanes in the order of the calls, as the provided methods do: they do nothing.
    ///
    /// Until [`end_lanes`](Stream::end_lanes), which the caller always calls, it makes no other calls than those for lanes,
    /// [`begin_step`](Stream::begin_step), [`launch`](Stream::launch), [`launch_fused`](Stream::launch_fused), [`copy`](Stream::copy) and
    /// [`fill`](Stream::fill). At any other call the stream ends the lanes by itself.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then there are no lanes.
    fn begin_lanes(&mut self, _lanes: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Queues the next commands on this lane, behind the [marks](Stream::mark_lane) of these numbers, which were set since the lanes began.
    ///
    /// # Errors
    ///
    /// Errors of the driver; of a stream with side streams also a mark that no lane has ever set.
    fn enter_lane(&mut self, _lane: usize, _behind: &[usize]) -> Result<(), Error> {
        Ok(())
    }

    /// Marks the place behind every command of the current lane so far, for lanes that are entered later. The number is free, or its mark is not needed
    /// any longer.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    fn mark_lane(&mut self, _mark: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Ends the lanes: later commands of this stream come behind those of all lanes.
    ///
    /// # Errors
    ///
    /// The device is lost.
    fn end_lanes(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Runs a caller's closure over the operands and takes it out of `function`, which then does nothing. After an error or a panic the
    /// closure may still be in `function`. A queued call keeps the captures until it has run.
    ///
    /// The provided method [waits](Stream::synchronize) for all earlier commands, and runs the closure in the calling thread. It is for streams
    /// whose operands the host can access at their addresses.
    ///
    /// # Errors
    ///
    /// [`CallError::Device`] for operands that overlap, one of them written; [`CallError::Function`] for an error of the closure.
    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        self.synchronize()?;
        let mut context = FnContext::new(operands)?;
        function.call(&mut context).map_err(CallError::Function)
    }

    /// Runs a caller's function in the calling thread, immediately, and gives it the driver's own stream. Commands that the function
    /// queues there are ordered after every earlier command of this stream and before every later one. For kernels and libraries of the
    /// caller's own.
    ///
    /// # Errors
    ///
    /// * [`CallError::Device`] with [`Error::NoRawStream`] if no driver runs the stream, as the provided method says, and for operands that
    ///   overlap, one of them written;
    /// * [`CallError::Function`] for an error of the function. Commands that it queued before the error still run.
    fn call_raw(&mut self, _function: &mut RawFn<'_>, _operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        Err(Error::NoRawStream.into())
    }

    /// Makes `event` mark the place after every command so far.
    ///
    /// # Errors
    ///
    /// [`Error::StaleEvent`] if the event has been released.
    fn record(&mut self, event: EventId) -> Result<(), Error>;

    /// Holds back later commands of this stream until the device has passed the place that `event` marks.
    ///
    /// # Errors
    ///
    /// [`Error::EventNotRecorded`] if no stream has recorded it, because the wait would order nothing; [`Error::StaleEvent`] if it has
    /// been released.
    fn wait(&mut self, event: EventId) -> Result<(), Error>;

    /// Blocks the calling thread until every command so far has completed.
    ///
    /// # Errors
    ///
    /// Errors that a command reported late; never on CPU.
    fn synchronize(&mut self) -> Result<(), Error>;
}

impl Commands for &mut (dyn Stream + '_) {
    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        (**self).begin_step(step, buffers);
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        (**self).launch(call)
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        (**self).copy(source, target)
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        (**self).fill(target, value)
    }

    fn launch_fused(&mut self, kernel: &FusedKernel, views: &mut [Operand<'static>]) -> Result<bool, Error> {
        (**self).launch_fused(kernel, views)
    }

    fn begin_graph(&mut self, key: GraphKey<'_>, buffers: &[Operand<'static>]) -> Result<GraphStart, Error> {
        (**self).begin_graph(key, buffers)
    }

    fn begin_block_graph(
        &mut self,
        key: GraphKey<'_>,
        buffers: &[Operand<'static>],
        blocks: GraphBlocks,
    ) -> Result<GraphStart, Error> {
        (**self).begin_block_graph(key, buffers, blocks)
    }

    fn begin_block(&mut self, start: BlockStart, condition: &Operand<'static>) -> Result<(), Error> {
        (**self).begin_block(start, condition)
    }

    fn begin_else(&mut self) -> Result<(), Error> {
        (**self).begin_else()
    }

    fn end_block(&mut self) -> Result<(), Error> {
        (**self).end_block()
    }

    fn loops_run(&mut self) -> LoopsRun {
        (**self).loops_run()
    }

    fn end_graph(&mut self, whole: bool) -> Result<bool, Error> {
        (**self).end_graph(whole)
    }

    fn begin_lanes(&mut self, lanes: usize) -> Result<(), Error> {
        (**self).begin_lanes(lanes)
    }

    fn enter_lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error> {
        (**self).enter_lane(lane, behind)
    }

    fn mark_lane(&mut self, mark: usize) -> Result<(), Error> {
        (**self).mark_lane(mark)
    }

    fn end_lanes(&mut self) -> Result<(), Error> {
        (**self).end_lanes()
    }
}

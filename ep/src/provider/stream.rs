//! Streams: ordered queues of commands on one device.

use std::any::Any;
use std::sync::Arc;

use crate::call::closure::InlineFn;
use crate::call::fn_context::FnContext;
use crate::call::kernel::KernelCall;
use crate::call::label::{Label, ProgramStep};
use crate::call::operand::Operand;
use crate::call::prepared::{Executes, Prepared, SegmentRun};
use crate::call::raw::RawFn;
use crate::call::step_note::StepNote;
use crate::errors::call_error::CallError;
use crate::errors::error::Error;
use crate::errors::sequence_error::SequenceError;
use crate::names::event_id::EventId;
use crate::sequence::CommandSequence;
use crate::sequence::commands::{Commands, Graphs};
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
/// * If it does not override [`call`](Stream::call), and the record of its kind says that functions of callers get the bytes
///   ([`KindInfo::runs_functions`](crate::KindInfo::runs_functions)), the host can access all memory of the device at its address.
pub unsafe trait Stream: Any + Send {
    /// Sets the instruction that the next commands belong to, until the next call. A stream that reports nothing ignores it.
    fn begin(&mut self, _label: &Label) {}

    /// Like [`begin`](Stream::begin), but passes only the numbers that a stream needs to report which command failed late. Cheap, so that
    /// an engine without an observer can call it for each instruction. A stream that reports nothing ignores it.
    fn number(&mut self, _stream: u32, _seq: u64) {}

    /// The label that [`begin`](Stream::begin) has set last, for a stream that takes over some commands of the instruction; `None` if it was not called since
    /// [`number`](Stream::number), and for a stream that reports nothing.
    fn label(&self) -> Option<Label> {
        None
    }

    /// Sets the step of a program that the next commands belong to, until the next [`begin`](Stream::begin) or
    /// [`number`](Stream::number). Operand `i` of these commands is a view of operand `buffers[i]` of the instruction. A stream that reports
    /// nothing ignores it.
    fn begin_step(&mut self, _step: ProgramStep, _buffers: &[usize]) {}

    /// Reports that the host uses these operands now, between two commands of the stream, for the step that was begun last. A stream that does not look for
    /// races ignores it.
    fn host_uses(&mut self, _what: &'static str, _operands: &[Operand<'static>]) {}

    /// Called after the host has run code of a caller between two commands of the stream, in the thread that queues them, also if that code has panicked: it may
    /// have changed the driver's state of the thread.
    fn after_host_code(&mut self) {}

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

    /// Runs a segment of a program that [`Device::prepare`](crate::Device::prepare) of the stream's device has made, over operands that are its
    /// buffers. On a stream that runs commands within their calls, all steps have run when this returns. Any other stream queues their commands. Returns
    /// `None` once the run is whole. A run may also pause: then this returns the step at which it did, and is called again with the same operands and the
    /// same `run` once everything that was queued on the stream so far has completed, commands and waits of earlier instructions among it.
    ///
    /// The provided method queues a command for each step, by [`begin_step`](Stream::begin_step), [`launch`](Stream::launch), [`copy`](Stream::copy) and
    /// [`fill`](Stream::fill), and pauses where the host must read a condition or runs a step.
    ///
    /// # Errors
    ///
    /// * [`SequenceError::Foreign`] if a device of another kind has prepared the segment; [`SequenceError::Refused`] for operands that overlap, one of
    ///   them written; [`SequenceError::Buffers`] for operands that are not the buffers of the segment. Nothing has run then.
    /// * [`SequenceError::Step`], [`SequenceError::Function`] and [`SequenceError::NotFinite`] for the first step that fails; steps before it have run or
    ///   are queued, and those after it are not.
    /// * [`SequenceError::Rounds`], [`SequenceError::LoopTime`] and [`SequenceError::Stopped`] for a loop that may not begin another round.
    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        CommandSequence::of(prepared)?.execute(&mut OneByOne(self), operands, run)
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

impl Executes for &mut (dyn Stream + '_) {
    #[inline]
    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        (**self).execute(prepared, operands, run)
    }
}

/// A stream on which a [`CommandSequence`] queues commands one by one, in the order of the steps.
#[derive(Debug)]
pub struct OneByOne<'s, S: ?Sized>(pub &'s mut S);

impl<S: Stream + ?Sized> Commands for OneByOne<'_, S> {
    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        self.0.begin_step(step, buffers);
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        self.0.launch(call)
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        self.0.copy(source, target)
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        self.0.fill(target, value)
    }

    fn label(&self) -> Option<Label> {
        self.0.label()
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.0.synchronize()
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        self.0.wait(event)
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        self.0.step_note()
    }

    fn after_host_code(&mut self) {
        self.0.after_host_code();
    }

    fn host_uses(&mut self, what: &'static str, operands: &[Operand<'static>]) {
        self.0.host_uses(what, operands);
    }

    fn graphs(&mut self) -> Option<&mut dyn Graphs> {
        None
    }
}

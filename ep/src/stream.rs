//! Streams: ordered queues of commands on one device.

use crate::closure::InlineFn;
use crate::error::{CallError, Error};
use crate::event::EventId;
use crate::kernel::KernelCall;
use crate::label::Label;
use crate::operand::Operand;
use crate::raw::RawFn;
use crate::scalar::Scalar;

/// An ordered queue of commands on one device.
///
/// Each command starts after the one before it on the same stream is over. Whether a call returns
/// before its command is over depends on the device: a CPU stream runs it in the calling thread,
/// any other queues it. Used by one thread at a time, but not always the same one.
///
/// A command that returns an error has not been queued and has written nothing, unless its error
/// says otherwise. A queued command that fails later is told by
/// [`Device::take_failures`](crate::Device::take_failures).
pub trait Stream: Send {
    /// Says which instruction the next commands belong to, until the next call. A stream that tells
    /// nobody ignores it.
    fn begin(&mut self, label: &Label);

    /// What of a label a stream needs to say which command failed late: the engine's numbers of the stream and of the
    /// instruction that the next commands belong to. For an engine that nobody watches, as it costs nothing; a stream
    /// that tells nobody ignores it.
    fn number(&mut self, _stream: u32, _seq: u64) {}

    /// Runs a kernel.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] for a kernel of another kind of device; [`Error::Kernel`] for operands
    /// that the kernel refuses and for what fails in it. Operands whose bytes overlap, one of them
    /// written, are refused, except an output that is exactly the view of an input of an
    /// [elementwise](crate::Op::is_elementwise) op.
    fn launch(&mut self, call: &mut KernelCall<'_>) -> Result<(), Error>;

    /// Copies `source` to `target`: same dtype and shape, any strides on either side.
    ///
    /// # Errors
    ///
    /// [`Error::CopyMismatch`], [`Error::NotWritable`], [`Error::Overlap`] (copying a view onto
    /// itself is allowed and does nothing), [`Error::OverlapsItself`], [`Error::Misaligned`].
    fn copy(&mut self, source: &Operand, target: &mut Operand) -> Result<(), Error>;

    /// Writes `value` to every element of `target`.
    ///
    /// # Errors
    ///
    /// [`Error::ScalarDoesNotFit`] by the rule of [`Scalar::fits`], [`Error::NotWritable`],
    /// [`Error::OverlapsItself`], [`Error::Misaligned`].
    fn fill(&mut self, target: &mut Operand, value: Scalar) -> Result<(), Error>;

    /// Runs a caller's code over the operands, and takes it out of `function`, which then does nothing; with an error or a
    /// panic it may be there still. A queued call keeps its captures until it has run.
    ///
    /// # Errors
    ///
    /// [`CallError::Device`] for operands that overlap, one of them written; [`CallError::Function`]
    /// for what the code returned.
    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand]) -> Result<(), CallError>;

    /// Runs a caller's function in the calling thread, now, and gives it the driver's own stream: what it queues there is
    /// ordered behind every command so far and before every later one, as if it were a command of this stream. For
    /// kernels and libraries of a caller's own.
    ///
    /// # Errors
    ///
    /// [`CallError::Device`] with [`Error::NoRawStream`] where no driver runs the stream, and for operands that overlap,
    /// one of them written; [`CallError::Function`] for what the function returned: what it has queued until then runs.
    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand]) -> Result<(), CallError>;

    /// Marks the place behind every command so far with `event`.
    ///
    /// # Errors
    ///
    /// [`Error::StaleEvent`] if the event has been released.
    fn record(&mut self, event: EventId) -> Result<(), Error>;

    /// Holds back later commands of this stream until the place that `event` marks has passed.
    ///
    /// # Errors
    ///
    /// [`Error::EventNotRecorded`] if no stream has recorded it (waiting would order nothing),
    /// [`Error::StaleEvent`] if it has been released.
    fn wait(&mut self, event: EventId) -> Result<(), Error>;

    /// Blocks the calling thread until every command so far is over.
    ///
    /// # Errors
    ///
    /// What a command reported late; never on CPU.
    fn synchronize(&mut self) -> Result<(), Error>;
}

//! The errors of this crate, as data.
//!
//! Devices, streams and operands return [`Error`]. It can contain a [`KernelError`] (a kernel refused its operands or failed), an
//! [`OpError`] (an op does not accept these inputs) or a [`ShapeError`] (sizes do not match). All are `Clone` and `PartialEq`, so that
//! one failure can be reported to every waiter. Shapes and layouts are boxed to keep `Result`s small.

use crate::errors::cuda_absent::CudaAbsent;
use crate::errors::driver_error::DriverError;
use crate::names::device_id::DeviceId;
use crate::names::device_kind::{DeviceKind, KindError};
use crate::names::event_id::EventId;
use crate::names::memory_kind::MemoryKind;
use crate::names::site::Site;
use crate::names::text::{ParseError, listed};
use crate::tensor::dtype::DType;
use crate::tensor::error::{OpError, ShapeError};
use crate::tensor::layout::Layout;
use crate::tensor::op::Op;
use crate::tensor::registered_op::RegisterError;
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::Shape;

crate::debug_as_display!(KernelError, Error);

/// A kernel that refused its operands or failed.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum KernelError {
    /// A wrong number of operands.
    #[error("{op} takes {} inputs and 1 output, found {inputs} and {outputs}", op.arity())]
    Operands { op: Op, inputs: usize, outputs: usize },
    /// An operand of a wrong dtype.
    #[error("operand {operand} of {op} must be {expected}, found {found}")]
    DType { op: Op, operand: usize, expected: DType, found: DType },
    /// Inputs that the op does not accept.
    #[error(transparent)]
    Op(#[from] OpError),
    /// An output of a wrong shape.
    #[error("the output of {op} must have shape {expected}, found {found}")]
    OutputShape { op: Op, expected: Box<Shape>, found: Box<Shape> },
    /// Operands that overlap in a way that the op does not allow.
    #[error(
        "operands {written} and {other} of {op} overlap and {written} is written; \
         only an elementwise op, or a registered op in place, may write exactly the view that it reads"
    )]
    Overlap { op: Op, written: usize, other: usize },
    /// Integer division by zero.
    #[error(
        "{op} divides by zero at element {index} of the output, row-major; integers have no infinity: replace the zeros, or cast to a float first"
    )]
    DivisionByZero { op: Op, index: usize },
    /// Integer power with a negative exponent.
    #[error(
        "{op} has the negative exponent {exponent} at element {index} of the output, row-major; cast to a float first"
    )]
    NegativeExponent { op: Op, index: usize, exponent: i64 },
    /// A row that a table does not have, or a place that an axis does not have.
    #[error("{op}: the index {row} is {}; it is element {index} of the indices, row-major", out_of_range(*op))]
    RowOutOfRange { op: Op, index: usize, row: i64 },
    /// Memory for intermediate results of a kernel that the machine did not give.
    #[error(
        "{op} needs {bytes} bytes of memory for {purpose}, which the machine did not give; \
         divide the input, or use fewer threads"
    )]
    OutOfMemory { op: Op, bytes: u64, purpose: &'static str },
    /// An operand that does not meet the kernel's requirements.
    #[error("operand {operand} of {op}: {source}")]
    Operand { op: Op, operand: usize, source: Box<Error> },
    /// The function of a registered op returned an error.
    #[error("{op}: {reason}")]
    Registered { op: Op, reason: String },
    /// A call of a registered op over tensors, on a stream that has no [`OpStates`](crate::OpStates).
    #[error("{op} is no function over tensors, or its stream keeps no states of registered ops")]
    NoStates { op: Op },
    /// The error of a kernel of a caller's own.
    #[error("{0}")]
    Other(String),
}

/// Says why `op` refuses an index.
fn out_of_range(op: Op) -> &'static str {
    match op {
        Op::IndexSelect => "no row of the table, whose rows count from 0",
        _ => "past the axis, whose places count from 0",
    }
}

/// The error of devices, streams and operands.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum Error {
    /// Not enough memory.
    #[error(
        "out of {kind} memory on {device}: {requested} bytes requested, {in_use} in use{}",
        limit.map_or(String::from("; the machine gave no more"), |limit| format!(" of at most {limit}"))
    )]
    OutOfMemory {
        device: DeviceId,
        kind: MemoryKind,
        requested: u64,
        /// Bytes in use on the device, over all kinds.
        in_use: u64,
        /// The limit that was met; `None` if the machine refused.
        limit: Option<u64>,
    },
    /// An unknown device.
    #[error(
        "there is no device {device}; available: {}{}", listed(available),
        if device.kind == DeviceKind::CPU { "; `VmBuilder::cpu_devices` sets how many CPU devices there are" } else { "" }
    )]
    NoDevice { device: DeviceId, available: Vec<DeviceId> },
    /// A second device with the same id.
    #[error("there is a device {device} already; give the new one another index")]
    DuplicateDevice { device: DeviceId },
    /// A missing kernel.
    #[error("there is no kernel for {op} of {dtype} on {device}; there is for: {}", listed(available))]
    MissingKernel { op: Op, device: DeviceKind, dtype: DType, available: Vec<DType> },
    /// A kernel of another kind of device.
    #[error("a {kernel} kernel cannot run on {device}; look it up for the device's kind")]
    WrongDevice { kernel: DeviceKind, device: DeviceId },
    /// A kernel refused its operands or failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An op that does not accept these inputs.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Sizes that do not match.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A text that is not a valid name.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A kind of device that cannot be registered.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// An op that cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A wait for an event that was never recorded: it would order nothing.
    #[error("event {event} on {device} has not been recorded; record it before waiting for it")]
    EventNotRecorded { event: EventId, device: DeviceId },
    /// An event used after its release.
    #[error("event {event} has been released; acquire a new one")]
    StaleEvent { event: EventId },
    /// A device that runs nothing any more.
    #[error("{device} is lost ({reason}); nothing more runs on it, other devices go on")]
    DeviceLost { device: DeviceId, reason: String },
    /// There is no CUDA device; the reason.
    #[error("there is no {device}: {reason}")]
    NoCuda { device: DeviceId, reason: Box<CudaAbsent> },
    /// The driver of a device refused a call. The device stays usable.
    #[error("{device}: {source}")]
    Driver { device: DeviceId, source: Box<DriverError> },
    /// A closure for memory that the host cannot access.
    #[error(
        "the host cannot reach the memory of {device}, so no closure runs on its streams; copy to the host and run it on a \
         stream there, or run a kernel of your own on the device"
    )]
    HostFunction { device: DeviceId },
    /// A function for a driver's stream on a device without one.
    #[error("the device has no driver's stream to give; only the streams of CUDA devices do")]
    NoRawStream,
    /// A caller's kernel on a device other than the one that it was loaded on.
    #[error("a kernel that was loaded on {loaded} cannot run on {device}; load it there too")]
    OtherDevice { loaded: DeviceId, device: DeviceId },
    /// A copy that the driver would have to stage.
    #[error(
        "a copy on {device} touches pageable memory at {address:#x}, which its driver would stage while the caller waits; \
         copy it to pinned memory first"
    )]
    Pageable { device: DeviceId, address: usize },
    /// A strided copy of memory that the device's kernels cannot access.
    #[error(
        "the kernels of {device} do not reach the memory at {address:#x}, so only views without gaps can be copied from \
         or to it; make the view contiguous first, or copy it through pinned memory"
    )]
    OutOfReach { device: DeviceId, address: usize },
    /// A fault that a test injected.
    #[error("injected fault: {0}")]
    Injected(String),
    /// A slice of a type other than the dtype.
    #[error(
        "elements asked for as {expected}, but the tensor holds {found}; ask for {found}, or cast the tensor first"
    )]
    WrongDType { expected: DType, found: DType },
    /// A slice of a view with gaps.
    #[error("a slice needs a row-major view without gaps, found {layout:?}; pass `contiguous()` of it, which copies")]
    NotContiguous { layout: Box<Layout> },
    /// A write without write access.
    #[error("the operand was not declared to be written; declare write or update access")]
    NotWritable,
    /// An operand index out of range.
    #[error(
        "there is no operand {index} to {access}, at {site}: the function declares {count} tensors to {access}, counted from 0 in their own order; \
         variables do not count"
    )]
    NoSuchOperand { access: &'static str, index: usize, count: usize, site: Site },
    /// An operand of a closure that cannot be given as a slice of the type asked for, with the line that asked.
    #[error("operand {index} to {access}, {dtype}{shape}, at {site}: {error}")]
    Slice { access: &'static str, index: usize, dtype: DType, shape: Box<Shape>, site: Site, error: Box<Error> },
    /// An operand that a closure declared to overwrite, and did not take.
    #[error(
        "operand {index} to write, {dtype}{shape}, was declared by write() and not taken, so it would hold what its memory held before; take it by \
         `context.writes.take` and overwrite all of it, or declare it by update() to keep what it holds"
    )]
    NotTaken { index: usize, dtype: DType, shape: Box<Shape> },
    /// A second `&mut` to one operand.
    #[error("operand {index} to write was taken before {site}; take each once, and keep the slice")]
    AlreadyTaken { index: usize, site: Site },
    /// More written operands than a closure can have.
    #[error("a closure writes at most {limit} operands, found {found}")]
    TooManyWrites { found: usize, limit: usize },
    /// Two operands that share bytes, one of them written.
    #[error(
        "operands {written} and {other} share bytes and {written} is written; \
         use one operand with update access, or copy one of them"
    )]
    Overlap { written: usize, other: usize },
    /// Views that a fused kernel was not made for.
    #[error("a fused kernel cannot run over these views: {0}; give it those of the group that it was made of")]
    FusedViews(String),
    /// A slice of an operand that another operand of the call overlaps.
    #[error("another operand of the call shares these bytes: use the pointer, not a slice")]
    SharedOperand,
    /// A write to a view that reaches elements twice.
    #[error("the view to write reaches elements more than once: {layout:?}; write its source")]
    OverlapsItself { layout: Box<Layout> },
    /// Elements at misaligned addresses.
    #[error("elements of {dtype} must lie at multiples of {}, found address {address:#x}", dtype.size())]
    Misaligned { dtype: DType, address: usize },
    /// A byte that is not a valid bool.
    #[error("byte {byte} at element {index} is no bool: it must be 0 or 1")]
    InvalidBool { index: usize, byte: u8 },
    /// A copy between tensors of different dtype or shape.
    #[error(
        "cannot copy {source_dtype}{source_shape} to {target_dtype}{target_shape}: \
         dtype and shape must be the same"
    )]
    CopyMismatch { source_dtype: DType, source_shape: Box<Shape>, target_dtype: DType, target_shape: Box<Shape> },
    /// A fill with a value that the dtype cannot represent.
    #[error("{value} does not fit {dtype}")]
    ScalarDoesNotFit { value: Scalar, dtype: DType },
}

impl From<Error> for KernelError {
    /// For kernels that use [`Operand`](crate::Operand)'s accessors with `?`.
    fn from(error: Error) -> KernelError {
        match error {
            Error::Kernel(error) => error,
            Error::Op(error) => KernelError::Op(error),
            error => KernelError::Other(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_several_lines_of_source_are_one_line() {
        let device = DeviceId::cuda(0);
        for error in [
            Error::HostFunction { device },
            Error::Pageable { device, address: 16 },
            Error::OutOfReach { device, address: 16 },
        ] {
            let text = error.to_string();
            assert!(!text.contains("  ") && !text.contains('\n'), "{text}");
        }
    }
}

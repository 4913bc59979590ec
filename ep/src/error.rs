//! Everything that can go wrong, as data.
//!
//! [`Error`] is what devices, streams and operands return; inside it are [`KernelError`] (a kernel
//! refused or failed), [`OpError`] (an op does not take these inputs) and [`ShapeError`] (sizes do
//! not fit). All are `Clone` and `PartialEq`, so one failure can be told to every waiter. Shapes and
//! layouts are boxed, so that a `Result` that is fine stays small.

use std::fmt::Display;

use crate::closure::FnError;
use crate::cuda::{CudaAbsent, DriverError};
use crate::device::{DeviceId, DeviceKind};
use crate::dtype::DType;
use crate::event::EventId;
use crate::layout::Layout;
use crate::memory::MemoryKind;
use crate::op::Op;
use crate::scalar::Scalar;
use crate::shape::{MAX_RANK, Shape};

/// Makes `Debug` of a type say what its `Display` says. Of an error that is a sentence, so a program whose `main` returns one ends with a
/// sentence; tests that want to see fields match on them.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),* $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_as_display!(CallError, ParseError, ShapeError, OpError, KernelError, Error);

/// Why a caller's code did not end well on a stream.
#[derive(thiserror::Error)]
pub enum CallError {
    /// The device refused or failed.
    #[error(transparent)]
    Device(#[from] Error),
    /// The caller's code returned an error.
    #[error("{0}")]
    Function(FnError),
}

/// A text that names nothing.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; expected {expected}")]
pub struct ParseError {
    /// What the text should have named.
    pub what: &'static str,
    /// The text.
    pub text: String,
    /// What would work.
    pub expected: String,
}

impl ParseError {
    /// `text` does not name a `what`; `expected` says what would.
    pub fn new(what: &'static str, text: &str, expected: impl Into<String>) -> ParseError {
        ParseError { what, text: text.to_owned(), expected: expected.into() }
    }
}

/// Sizes, axes or strides that do not fit.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum ShapeError {
    /// More axes than a shape can have.
    #[error("a shape has at most {MAX_RANK} axes, {dims:?} has {}", dims.len())]
    Rank { dims: Vec<usize> },
    /// More elements than memory can have.
    #[error("a tensor of shape {dims:?} would not fit in memory that an isize can address")]
    TooLarge { dims: Vec<usize> },
    /// No such axis.
    #[error("shape {shape} has {} axes, counted from 0: there is no axis {axis}", shape.rank())]
    Axis { axis: usize, shape: Box<Shape> },
    /// Not a set of axes.
    #[error("axes {axes:?}: each must be below {MAX_RANK} and named once")]
    Axes { axes: Vec<usize> },
    /// Not an order of all axes.
    #[error("{axes:?} does not name each of the {} axes of shape {shape} once", shape.rank())]
    Permutation { axes: Vec<usize>, shape: Box<Shape> },
    /// A range past the end of its axis.
    #[error("range {start}..{end} does not lie within axis {axis} of shape {shape}")]
    Slice { start: usize, end: usize, axis: usize, shape: Box<Shape> },
    /// Another number of elements.
    #[error(
        "shape {from} has {} elements and cannot become {to}, which has {}",
        from.elements(), to.elements()
    )]
    Reshape { from: Box<Shape>, to: Box<Shape> },
    /// Shapes that do not broadcast together.
    #[error("shapes {left} and {right} do not broadcast: aligned at the last axis, sizes must be equal or 1")]
    Broadcast { left: Box<Shape>, right: Box<Shape> },
    /// A shape that does not broadcast to another.
    #[error("shape {from} does not broadcast to {to}: aligned at the last axis, a size must be equal or 1")]
    BroadcastTo { from: Box<Shape>, to: Box<Shape> },
    /// Not one stride per axis.
    #[error("shape {shape} needs {} strides, found {strides:?}", shape.rank())]
    Strides { shape: Box<Shape>, strides: Vec<usize> },
}

/// An op that does not take these inputs or parameters.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum OpError {
    /// Another number of inputs.
    #[error("{op} takes {} inputs, found {found}", op.arity())]
    Arity { op: Op, found: usize },
    /// A dtype that the op is not made for.
    #[error("{op} takes {}, found {dtype}; cast first", listed(available))]
    DType { op: Op, dtype: DType, available: &'static [DType] },
    /// An output that does not follow from inputs.
    #[error("{op} has no inputs that its output would follow from: give it the output")]
    NoInputs { op: Op },
    /// Two inputs that need the same dtype.
    #[error("{op} needs inputs of one dtype, found {left} and {right}; cast one of them first")]
    MixedDTypes { op: Op, left: DType, right: DType },
    /// Two inputs that need the same shape.
    #[error("{op} needs inputs of one shape, found {left} and {right}")]
    MixedShapes { op: Op, left: Box<Shape>, right: Box<Shape> },
    /// A condition that is not bool.
    #[error("the condition of {op} must be bool, found {found}; cast it or compare first")]
    Condition { op: Op, found: DType },
    /// Shapes or axes that do not fit.
    #[error("{op}: {source}")]
    Shape { op: Op, source: ShapeError },
    /// Not exactly one axis.
    #[error("{op} works over exactly one axis, found {found}")]
    OneAxis { op: Op, found: usize },
    /// Matrices of too few axes.
    #[error("matmul needs inputs of at least 2 axes, found {left} and {right}; reshape first")]
    MatMulRank { left: Box<Shape>, right: Box<Shape> },
    /// Matrices that do not fit.
    #[error("matmul of {left} and {right}: the last size of the first must equal the last but one of the second")]
    MatMulSizes { left: Box<Shape>, right: Box<Shape> },
    /// No elements where at least one is needed.
    #[error("{op} over no elements: shape {shape} has size 0 on a reduced axis")]
    EmptyReduction { op: Op, shape: Box<Shape> },
    /// A cast or one-hot to nothing.
    #[error("{op} needs a target dtype: set Params::to")]
    MissingTarget { op: Op },
    /// Parameters of another op.
    #[error("{op} needs {expected}: set Params::extra")]
    MissingExtra { op: Op, expected: &'static str },
    /// A value that the dtype cannot hold.
    #[error("{op} of {dtype}: the value {value} does not fit it")]
    Value { op: Op, value: Scalar, dtype: DType },
}

/// A kernel that refused its operands or failed.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum KernelError {
    /// Another number of operands.
    #[error("{op} takes {} inputs and 1 output, found {inputs} and {outputs}", op.arity())]
    Operands { op: Op, inputs: usize, outputs: usize },
    /// An operand of another dtype.
    #[error("operand {operand} of {op} must be {expected}, found {found}")]
    DType { op: Op, operand: usize, expected: DType, found: DType },
    /// Inputs that the op does not take.
    #[error(transparent)]
    Op(#[from] OpError),
    /// An output of another shape.
    #[error("the output of {op} must have shape {expected}, found {found}")]
    OutputShape { op: Op, expected: Box<Shape>, found: Box<Shape> },
    /// Operands that overlap in a way that the op does not allow.
    #[error(
        "operands {written} and {other} of {op} overlap and {written} is written; \
         only an elementwise op may write exactly the view that it reads"
    )]
    Overlap { op: Op, written: usize, other: usize },
    /// Integer division by zero.
    #[error("{op} divides by zero at element {index} of the output, row-major")]
    DivisionByZero { op: Op, index: usize },
    /// Integer power with a negative exponent.
    #[error("{op} has the negative exponent {exponent} at element {index} of the output, row-major")]
    NegativeExponent { op: Op, index: usize, exponent: i64 },
    /// An operand that cannot be used as the kernel needs it.
    #[error("operand {operand} of {op}: {source}")]
    Operand { op: Op, operand: usize, source: Box<Error> },
    /// What a registered kernel says.
    #[error("{0}")]
    Other(String),
}

/// What devices, streams and operands return.
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
    /// No such device.
    #[error("there is no device {device}; available: {}", listed(available))]
    NoDevice { device: DeviceId, available: Vec<DeviceId> },
    /// A second device of one id.
    #[error("there is a device {device} already; give the new one another index")]
    DuplicateDevice { device: DeviceId },
    /// No such kernel.
    #[error("there is no kernel for {op} of {dtype} on {device}; there is for: {}", listed(available))]
    MissingKernel { op: Op, device: DeviceKind, dtype: DType, available: Vec<DType> },
    /// A kernel of another kind of device.
    #[error("a {kernel} kernel cannot run on {device}; look it up for the device's kind")]
    WrongDevice { kernel: DeviceKind, device: DeviceId },
    /// A kernel refused its operands or failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An op does not take these inputs.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Sizes do not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A text that names nothing.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A wait that would order nothing.
    #[error("event {event} on {device} has not been recorded; record it before waiting for it")]
    EventNotRecorded { event: EventId, device: DeviceId },
    /// An event used after its release.
    #[error("event {event} has been released; acquire a new one")]
    StaleEvent { event: EventId },
    /// A device that does nothing more.
    #[error("{device} is lost ({reason}); nothing more runs on it, other devices go on")]
    DeviceLost { device: DeviceId, reason: String },
    /// There is no CUDA device, and why.
    #[error("there is no {device}: {reason}")]
    NoCuda { device: DeviceId, reason: Box<CudaAbsent> },
    /// The driver of a device refused a call. The device goes on.
    #[error("{device}: {source}")]
    Driver { device: DeviceId, source: Box<DriverError> },
    /// A caller's closure where the host does not reach the memory.
    #[error(
        "the host cannot reach the memory of {device}, so no closure runs on its streams; copy to the host and run it on a \
         stream there, or run a kernel of your own on the device"
    )]
    HostFunction { device: DeviceId },
    /// A caller's function over a driver's stream where there is none.
    #[error("{device} has no driver's stream to give; only the streams of CUDA devices do")]
    NoRawStream { device: DeviceId },
    /// A caller's kernel on another device than it was loaded on.
    #[error("a kernel that was loaded on {loaded} cannot run on {device}; load it there too")]
    OtherDevice { loaded: DeviceId, device: DeviceId },
    /// A copy that the driver would have to stage.
    #[error(
        "a copy on {device} touches pageable memory at {address:#x}, which its driver would stage while the caller waits; \
         copy it to pinned memory first"
    )]
    Pageable { device: DeviceId, address: usize },
    /// A strided copy of memory that the device's kernels do not reach.
    #[error(
        "the kernels of {device} do not reach the memory at {address:#x}, so only views without gaps can be copied from \
         or to it; make the view contiguous first, or copy it through pinned memory"
    )]
    OutOfReach { device: DeviceId, address: usize },
    /// A fault that a test asked for.
    #[error("injected fault: {0}")]
    Injected(String),
    /// Elements asked for as another type.
    #[error("elements asked for as {expected}, but the tensor holds {found}")]
    WrongDType { expected: DType, found: DType },
    /// A slice of a view with gaps.
    #[error("a slice needs a row-major view without gaps, found {layout:?}; copy it first")]
    NotContiguous { layout: Box<Layout> },
    /// A write without write access.
    #[error("the operand was not declared to be written; declare write or update access")]
    NotWritable,
    /// A read through the accessor for writes, or the other way round.
    #[error("there are {count} operands to {access}, counted from 0: there is no {index}")]
    NoSuchOperand { access: &'static str, index: usize, count: usize },
    /// A second `&mut` to one operand.
    #[error("operand {index} to write has been taken already; take each once")]
    AlreadyTaken { index: usize },
    /// More operands than a closure can have.
    #[error("a closure writes at most {limit} operands, found {found}")]
    TooManyWrites { found: usize, limit: usize },
    /// Two operands that share bytes, one of them written.
    #[error(
        "operands {written} and {other} share bytes and {written} is written; \
         use one operand with update access, or copy one of them"
    )]
    Overlap { written: usize, other: usize },
    /// A slice of an operand that another operand of the call overlaps.
    #[error("another operand of the call shares these bytes: use the pointer, not a slice")]
    SharedOperand,
    /// A write to a view that reaches elements twice.
    #[error("the view to write reaches elements more than once: {layout:?}; write its source")]
    OverlapsItself { layout: Box<Layout> },
    /// Elements at odd addresses.
    #[error("elements of {dtype} must lie at multiples of {}, found address {address:#x}", dtype.size())]
    Misaligned { dtype: DType, address: usize },
    /// A byte that is no truth value.
    #[error("byte {byte} at element {index} is no bool: it must be 0 or 1")]
    InvalidBool { index: usize, byte: u8 },
    /// A copy between unlike tensors.
    #[error(
        "cannot copy {source_dtype}{source_shape} to {target_dtype}{target_shape}: \
         dtype and shape must be the same"
    )]
    CopyMismatch { source_dtype: DType, source_shape: Box<Shape>, target_dtype: DType, target_shape: Box<Shape> },
    /// A fill with a value that the dtype cannot hold.
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

/// The items with commas between, or "none".
pub(crate) fn listed(items: &[impl Display]) -> String {
    if items.is_empty() {
        return String::from("none");
    }
    let texts: Vec<String> = items.iter().map(|item| item.to_string()).collect();
    texts.join(", ")
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

//! Errors of shapes, and of the inputs and parameters of an op.

use crate::names::text::listed;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::{MAX_RANK, Shape};

crate::debug_as_display!(ShapeError, OpError);

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
    /// A list that is not a set of axes.
    #[error("axes {axes:?}: {}", no_set(axes))]
    Axes { axes: Vec<usize> },
    /// A list that is not a permutation of all axes.
    #[error("axes {axes:?} do not name each of the {} axes of shape {shape} once", shape.rank())]
    Permutation { axes: Vec<usize>, shape: Box<Shape> },
    /// A range past the end of its axis.
    #[error("range {start}..{end} {} axis {axis} of shape {shape}", no_range(*start, *end))]
    Slice { start: usize, end: usize, axis: usize, shape: Box<Shape> },
    /// Parts that are not all of an axis.
    #[error(
        "parts of the sizes {sizes:?} are not all of axis {axis} of shape {shape}: name at least one part, and sizes with the sum {}",
        shape.dims()[*axis]
    )]
    Split { sizes: Vec<usize>, axis: usize, shape: Box<Shape> },
    /// A squeeze of an axis that has another size than 1.
    #[error("axis {axis} of shape {shape} has size {}, and only an axis of size 1 can be removed", shape.dims()[*axis])]
    Squeeze { axis: usize, shape: Box<Shape> },
    /// A reshape that changes the number of elements.
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
    /// A wrong number of strides.
    #[error("shape {shape} needs {} strides, found {strides:?}", shape.rank())]
    Strides { shape: Box<Shape>, strides: Vec<usize> },
}

/// An op that does not take these inputs or parameters.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum OpError {
    /// A wrong number of inputs.
    #[error("{op} takes {} inputs{}, found {found}", op.arity(), names_of(*op))]
    Arity { op: Op, found: usize },
    /// A dtype that the op does not support.
    #[error("{op} takes {}, found {dtype}; cast first", listed(available))]
    DType { op: Op, dtype: DType, available: &'static [DType] },
    /// An op whose output does not follow from inputs.
    #[error("{op} has no inputs that its output would follow from: give it the output")]
    NoInputs { op: Op },
    /// The rule of a registered op gave an error.
    #[error("{op}: {reason}")]
    Rule { op: Op, reason: String },
    /// Random numbers for a registered op that draws none.
    #[error(
        "{op} draws no random numbers, and the call gives it a share of a generator; register it with `random()`, or leave the share out"
    )]
    DrawsNone { op: Op },
    /// A registered op in place whose rule gives another output than the first input.
    #[error(
        "{op} works in place, so its rule must give the dtype and shape of its first input, and it gave {}{}",
        found.0,
        found.1
    )]
    OutputInPlace { op: Op, found: Box<(DType, Shape)> },
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
    /// A wrong number of axes.
    #[error("{op} works over exactly one axis, found {found}")]
    OneAxis { op: Op, found: usize },
    /// Matrices with too few axes.
    #[error("matmul needs inputs of at least 2 axes, found {left} and {right}; reshape first")]
    MatMulRank { left: Box<Shape>, right: Box<Shape> },
    /// Matrices whose sizes do not match.
    #[error(
        "matmul of {left} and {right}: the last size of the first must equal the last but one of the second{}",
        transposed(left, right)
    )]
    MatMulSizes { left: Box<Shape>, right: Box<Shape> },
    /// A layer norm whose weight and bias are not rows of its input.
    #[error(
        "layer_norm of {input} needs a weight and a bias with one axis, of the size of the innermost axis of its input, found {weight} and {bias}"
    )]
    LayerNormShapes { input: Box<Shape>, weight: Box<Shape>, bias: Box<Shape> },
    /// An RMS norm whose weight is not a row of its input.
    #[error(
        "rms_norm of {input} needs a weight with one axis, of the size of the innermost axis of its input, found {weight}"
    )]
    RmsNormShapes { input: Box<Shape>, weight: Box<Shape> },
    /// An epsilon that may make a square root fail.
    #[error("the epsilon of {op} must be a finite number that is not negative, such as 1e-5, found {found}")]
    Epsilon { op: Op, found: Scalar },
    /// A convolution of tensors that have not four axes.
    #[error(
        "{op} needs an input [n, c, h, w] and a weight [o, c / groups, height, width], found {input} and {weight}; reshape first, \
         with an axis of size 1 for a convolution along one axis"
    )]
    ConvolutionRank { op: Op, input: Box<Shape>, weight: Box<Shape> },
    /// Channels that groups do not divide, or a weight for others.
    #[error(
        "{op} of an input {input} by a weight {weight} in {groups} groups: axis 1 of the input must be {groups} times axis 1 of the \
         weight, and axis 0 of the weight a multiple of {groups}"
    )]
    ConvolutionChannels { op: Op, input: Box<Shape>, weight: Box<Shape>, groups: usize },
    /// A pooling of a tensor that has not four axes.
    #[error(
        "{op} needs an input [n, c, h, w], found {input}; reshape it first, with an axis of size 1 for a pooling along one axis"
    )]
    PoolingRank { op: Op, input: Box<Shape> },
    /// A size or step of 0.
    #[error("{op} needs a {what} of at least 1, found 0")]
    WindowOfNothing { op: Op, what: &'static str },
    /// A window that reaches past both ends of its input.
    #[error(
        "{op}: a window that reaches over {reach} elements does not fit into {input} elements with a padding of {padding} on both \
         sides; use a smaller window or dilation, or more padding"
    )]
    WindowReach { op: Op, input: usize, padding: usize, reach: usize },
    /// An axis that is longer than a window may move over.
    #[error("{op}: height and width are at most {most}, found {found}")]
    WindowAxis { op: Op, found: usize, most: usize },
    /// Windows that would have no element of the input.
    #[error(
        "{op}: each window needs an element of the input, so the padding must be less than the window, and the input not empty; found a \
         padding of {padding}, a window of {window} and an input of {input}"
    )]
    PoolingPadding { op: Op, window: usize, padding: usize, input: usize },
    /// A gradient of another shape than what it is the gradient of.
    #[error("{op} needs a gradient of shape {expected}, as the forward op gives it, found {found}")]
    GradientShape { op: Op, expected: Box<Shape>, found: Box<Shape> },
    /// Targets that are not i64.
    #[error("the targets of {op} must be i64, found {found}; cast them first")]
    TargetDType { op: Op, found: DType },
    /// Targets that are not one for each row of logits.
    #[error(
        "{op} needs logits with an innermost axis of classes, and targets with their other axes, found {logits} and {targets}"
    )]
    TargetShape { op: Op, logits: Box<Shape>, targets: Box<Shape> },
    /// A table that has not two axes.
    #[error("index_select needs a table of 2 axes, rows and columns, found {table}; reshape it first")]
    TableRank { table: Box<Shape> },
    /// Indices of another dtype than `i32`, `i64` or `u8`.
    #[error("the indices of {op} must be i32, i64 or u8, found {found}; cast them first")]
    IndexDType { op: Op, found: DType },
    /// A tensor without rows and columns.
    #[error("{op} needs at least 2 axes, the rows and columns of matrices, found {shape}; reshape it first")]
    NoMatrix { op: Op, shape: Box<Shape> },
    /// Indices along an axis that do not fit on the other axes.
    #[error(
        "{op} along axis {axis} of {input} needs indices with as many axes, of the same sizes but for that axis, found {indices}"
    )]
    AlongAxis { op: Op, axis: usize, input: Box<Shape>, indices: Box<Shape> },
    /// A source that has not one element for each index.
    #[error(
        "{op} needs one element of its source for each index, found a source of {source_shape} and indices of {indices}"
    )]
    SourceShape { op: Op, source_shape: Box<Shape>, indices: Box<Shape> },
    /// More elements than there are on the axis.
    #[error(
        "{op} of {count} elements along axis {axis} of {shape}, which has {} there: give at most that count",
        shape.dims()[*axis]
    )]
    TopCount { op: Op, count: usize, axis: usize, shape: Box<Shape> },
    /// An axis that is too long for a CUDA device.
    #[error(
        "{op} along axis {axis} of {shape}: a CUDA device sorts at most {} elements of an axis; sort it on a CPU, or in parts",
        u32::MAX
    )]
    SortLength { op: Op, axis: usize, shape: Box<Shape> },
    /// An empty reduction where at least one element is needed.
    #[error("{op} over no elements: shape {shape} has size 0 on a reduced axis")]
    EmptyReduction { op: Op, shape: Box<Shape> },
    /// A missing target dtype.
    #[error("{op} needs a target dtype: set Params::to")]
    MissingTarget { op: Op },
    /// Missing parameters, or those of another op.
    #[error("{op} needs {expected}: set Params::extra")]
    MissingExtra { op: Op, expected: &'static str },
    /// Numbers that stand where the op takes tensors.
    #[error("{op} takes no such numbers as inputs: {}", numbers_of(*op))]
    Numbers { op: Op },
    /// A value that the dtype cannot hold.
    #[error("{op} of {dtype}: the value {value} does not fit it")]
    Value { op: Op, value: Scalar, dtype: DType },
}

impl OpError {
    /// Whether the dtypes of the inputs do not fit.
    pub fn is_of_dtypes(&self) -> bool {
        use OpError::{Condition, DType, IndexDType, MixedDTypes, TargetDType};
        matches!(self, DType { .. } | MixedDTypes { .. } | Condition { .. } | TargetDType { .. } | IndexDType { .. })
    }
}

/// Says why `axes` are no set of axes.
fn no_set(axes: &[usize]) -> String {
    match axes.iter().enumerate().find(|(place, axis)| axes[..*place].contains(axis)) {
        Some((_, axis)) => format!("axis {axis} is named twice; name each once"),
        None => format!("a tensor has at most {MAX_RANK}, counted from 0"),
    }
}

/// Says why a range is none of an axis.
fn no_range(start: usize, end: usize) -> &'static str {
    if start > end { "ends before it begins, on" } else { "does not lie within" }
}

/// Says which sizes would fit, if one of two matrices were transposed.
fn transposed(left: &Shape, right: &Shape) -> &'static str {
    match (left.dims(), right.dims()) {
        ([.., _, inner], [.., _, other]) if inner == other => "; transpose the second",
        ([.., inner, _], [.., other, _]) if inner == other => "; transpose the first",
        _ => "",
    }
}

/// The names of the inputs of an op of a caller's own, whom nothing else tells them.
fn names_of(op: Op) -> String {
    if let Op::Registered(_) = op { format!(" ({})", op.inputs().join(", ")) } else { String::new() }
}

/// Which numbers an op takes.
fn numbers_of(op: Op) -> String {
    match op {
        Op::Registered(registered) if op.is_over_tensors() => {
            let tensors = op.arity() - registered.numbers();
            let of = |(place, name): (usize, &&str)| format!("`{name}` by `Params::with_number({}, …)`", tensors + place);
            let all: Vec<String> = op.inputs()[tensors..].iter().enumerate().map(of).collect();
            if all.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", all.join(" and ")) }
        }
        _ => "elementwise ops of two and three inputs take them, where only for its last two inputs, beside one tensor whose dtype they take".to_owned(),
    }
}

//! The rules of every op in one place: the dtypes that it accepts, and the dtype and shape of its output.

use crate::tensor::dtype::DType;
use crate::tensor::error::{OpError, ShapeError};
use crate::tensor::op::Op;
use crate::tensor::params::{Extra, Params};
use crate::tensor::shape::{MAX_RANK, Shape, broadcast_shapes};

use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};

/// The dtypes that `op` accepts for its [key input](Op::key_input). The kernels that exist per device are in
/// [`KernelRegistry`](crate::KernelRegistry).
pub const fn supported_dtypes(op: Op) -> &'static [DType] {
    match op {
        Op::Neg | Op::Abs | Op::Relu | Op::MatMul => &[F32, F64, F16, BF16, I32, I64],
        Op::Exp | Op::Log | Op::Sqrt | Op::Tanh | Op::Sigmoid | Op::Mean => &[F32, F64, F16, BF16],
        Op::Softmax | Op::LogSoftmax | Op::SoftmaxBackward | Op::LogSoftmaxBackward => &[F32, F64, F16, BF16],
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Pow | Op::Sum => &[F32, F64, F16, BF16, I32, I64, U8],
        Op::Min
        | Op::Max
        | Op::Eq
        | Op::Ne
        | Op::Lt
        | Op::Le
        | Op::Gt
        | Op::Ge
        | Op::Where
        | Op::ReduceMax
        | Op::ReduceMin
        | Op::ArgMax
        | Op::Pad
        | Op::Cast => &[F32, F64, F16, BF16, I32, I64, U8, Bool],
        Op::OneHot => &[I32, I64, U8],
        Op::Uniform | Op::Normal => &[F32, F64, F16, BF16],
    }
}

/// Whether `op` accepts `dtype` for its [key input](Op::key_input).
pub fn supports(op: Op, dtype: DType) -> bool {
    supported_dtypes(op).contains(&dtype)
}

/// The dtype and shape of the output of `op`.
///
/// * Unary ops: those of the input. [`Op::Cast`]: the dtype of [`Params::to`].
/// * Binary ops: two inputs of one dtype, shapes broadcast. Comparisons give bool.
/// * [`Op::Where`]: a bool condition and two inputs of one dtype, all three broadcast.
/// * Reductions over [`Params::axes`] (none: all axes): the axes are removed, or kept with size 1 if [`Params::keep_dims`]. The dtype is
///   kept; [`Op::ArgMax`] takes exactly one axis and gives i64.
/// * [`Op::Softmax`], [`Op::LogSoftmax`]: exactly one axis; shape and dtype are kept. Their gradients: two inputs of one dtype and shape.
/// * [`Op::Pad`]: [`Params::axes`] (none: all axes) grow by both margins; the dtype is kept.
/// * [`Op::OneHot`]: one more axis, innermost, in the dtype of [`Params::to`].
/// * [`Op::MatMul`]: `[.., m, k]` by `[.., k, n]` gives `[.., m, n]`, where `..` broadcasts.
///
/// # Errors
///
/// * [`OpError::NoInputs`] for an op [without inputs](Op::is_source), whose output is given by the caller ([`check_source`]).
/// * [`OpError::EmptyReduction`] for a reduction other than [`Op::Sum`] over axes whose sizes have the product 0.
/// * Otherwise an [`OpError`] that says which inputs or parameters the op accepts.
pub fn infer(op: Op, inputs: &[(DType, &Shape)], params: &Params) -> Result<(DType, Shape), OpError> {
    if inputs.len() != op.arity() {
        return Err(OpError::Arity { op, found: inputs.len() });
    }
    if op.is_source() {
        return Err(OpError::NoInputs { op });
    }
    let (dtype, shape) = inputs[op.key_input()];
    if !supports(op, dtype) {
        return Err(OpError::DType { op, dtype, available: supported_dtypes(op) });
    }
    match op {
        Op::Cast => Ok((params.to.ok_or(OpError::MissingTarget { op })?, *shape)),
        Op::Where => {
            if inputs[0].0 != Bool {
                return Err(OpError::Condition { op, found: inputs[0].0 });
            }
            let (dtype, shape) = pair(op, inputs[1], inputs[2])?;
            Ok((dtype, broadcast(op, inputs[0].1, &shape)?))
        }
        Op::Softmax | Op::LogSoftmax => {
            one_axis(op, shape, params)?;
            Ok((dtype, *shape))
        }
        Op::SoftmaxBackward | Op::LogSoftmaxBackward => {
            let dtype = same_dtype(op, dtype, inputs[1].0)?;
            if shape != inputs[1].1 {
                let (left, right) = (Box::new(*shape), Box::new(*inputs[1].1));
                return Err(OpError::MixedShapes { op, left, right });
            }
            one_axis(op, shape, params)?;
            Ok((dtype, *shape))
        }
        Op::ArgMax => {
            one_axis(op, shape, params)?;
            Ok((I64, reduced(op, shape, params)?))
        }
        Op::Sum | Op::Mean | Op::ReduceMax | Op::ReduceMin => Ok((dtype, reduced(op, shape, params)?)),
        Op::Pad => Ok((dtype, padded(dtype, shape, params)?)),
        Op::OneHot => one_hot(shape, params),
        Op::MatMul => matmul(inputs[0], inputs[1]),
        _ if op.is_comparison() => Ok((Bool, pair(op, inputs[0], inputs[1])?.1)),
        _ if op.arity() == 2 => pair(op, inputs[0], inputs[1]),
        _ => Ok((dtype, *shape)),
    }
}

/// A fast path of [`infer`] for most calls: `inputs` inputs that all have this dtype and one common shape, which is also the output's.
/// Returns the dtype of the output. `None` decides nothing: call [`infer`].
#[inline]
pub fn infer_alike(op: Op, inputs: usize, dtype: DType) -> Option<DType> {
    let decides = op.is_elementwise() && !matches!(op, Op::Cast | Op::Where);
    let fits = inputs == op.arity() && supports(op, dtype);
    (decides && fits).then_some(if op.is_comparison() { Bool } else { dtype })
}

/// Checks that an op [without inputs](Op::is_source) can make an output of `dtype`. Returns the seed and the counter of its parameters.
///
/// # Errors
///
/// [`OpError::DType`], [`OpError::MissingExtra`]; [`OpError::Arity`] for an op with inputs.
pub fn check_source(op: Op, dtype: DType, params: &Params) -> Result<(u64, u64), OpError> {
    if !op.is_source() {
        return Err(OpError::Arity { op, found: 0 });
    }
    if !supports(op, dtype) {
        return Err(OpError::DType { op, dtype, available: supported_dtypes(op) });
    }
    match params.extra {
        Extra::Random { seed, counter } => Ok((seed, counter)),
        _ => Err(OpError::MissingExtra { op, expected: "Extra::Random" }),
    }
}

fn shape_error(op: Op) -> impl Fn(ShapeError) -> OpError {
    move |source| OpError::Shape { op, source }
}

fn broadcast(op: Op, left: &Shape, right: &Shape) -> Result<Shape, OpError> {
    broadcast_shapes(left, right).map_err(shape_error(op))
}

fn same_dtype(op: Op, left: DType, right: DType) -> Result<DType, OpError> {
    if left == right { Ok(left) } else { Err(OpError::MixedDTypes { op, left, right }) }
}

fn pair(op: Op, left: (DType, &Shape), right: (DType, &Shape)) -> Result<(DType, Shape), OpError> {
    let dtype = same_dtype(op, left.0, right.0)?;
    Ok((dtype, broadcast(op, left.1, right.1)?))
}

fn one_axis(op: Op, shape: &Shape, params: &Params) -> Result<(), OpError> {
    if params.axes.len() != 1 {
        return Err(OpError::OneAxis { op, found: params.axes.len() });
    }
    check_axes(op, shape, params)
}

fn check_axes(op: Op, shape: &Shape, params: &Params) -> Result<(), OpError> {
    for axis in params.axes.iter() {
        shape.check_axis(axis).map_err(shape_error(op))?;
    }
    Ok(())
}

fn reduced(op: Op, shape: &Shape, params: &Params) -> Result<Shape, OpError> {
    check_axes(op, shape, params)?;
    let axes = params.axes.or_all(shape.rank());
    let mut dims = [0; MAX_RANK];
    let mut rank = 0;
    for (axis, &dim) in shape.dims().iter().enumerate() {
        if axes.contains(axis) {
            if dim == 0 && op != Op::Sum {
                return Err(OpError::EmptyReduction { op, shape: Box::new(*shape) });
            }
            if !params.keep_dims {
                continue;
            }
        }
        dims[rank] = if axes.contains(axis) { 1 } else { dim };
        rank += 1;
    }
    Shape::new(&dims[..rank]).map_err(shape_error(op))
}

fn padded(dtype: DType, shape: &Shape, params: &Params) -> Result<Shape, OpError> {
    let op = Op::Pad;
    let Extra::Pad { before, after, value } = params.extra else {
        return Err(OpError::MissingExtra { op, expected: "Extra::Pad" });
    };
    if !value.fits(dtype) {
        return Err(OpError::Value { op, value, dtype });
    }
    check_axes(op, shape, params)?;
    let mut dims = [0; MAX_RANK];
    let rank = shape.rank();
    dims[..rank].copy_from_slice(shape.dims());
    for axis in params.axes.or_all(rank).iter() {
        // No valid shape has a size that saturates.
        dims[axis] = dims[axis].saturating_add(before as usize).saturating_add(after as usize);
    }
    Shape::new(&dims[..rank]).map_err(shape_error(op))
}

fn one_hot(shape: &Shape, params: &Params) -> Result<(DType, Shape), OpError> {
    let op = Op::OneHot;
    let Extra::Classes(classes) = params.extra else {
        return Err(OpError::MissingExtra { op, expected: "Extra::Classes" });
    };
    let dtype = params.to.ok_or(OpError::MissingTarget { op })?;
    let mut dims = [0; MAX_RANK + 1];
    let rank = shape.rank();
    dims[..rank].copy_from_slice(shape.dims());
    dims[rank] = classes;
    Ok((dtype, Shape::new(&dims[..rank + 1]).map_err(shape_error(op))?))
}

fn matmul(left: (DType, &Shape), right: (DType, &Shape)) -> Result<(DType, Shape), OpError> {
    let op = Op::MatMul;
    let dtype = same_dtype(op, left.0, right.0)?;
    let (left, right) = (left.1, right.1);
    let (Some((left_batch, &[m, k])), Some((right_batch, &[k_right, n]))) =
        (left.dims().split_last_chunk::<2>(), right.dims().split_last_chunk::<2>())
    else {
        let (left, right) = (Box::new(*left), Box::new(*right));
        return Err(OpError::MatMulRank { left, right });
    };
    if k != k_right {
        let (left, right) = (Box::new(*left), Box::new(*right));
        return Err(OpError::MatMulSizes { left, right });
    }
    let part = |dims| Shape::new(dims).map_err(shape_error(op));
    let batch = broadcast(op, &part(left_batch)?, &part(right_batch)?)?;
    let rank = batch.rank();
    let mut dims = [0; MAX_RANK];
    dims[..rank].copy_from_slice(batch.dims());
    dims[rank] = m;
    dims[rank + 1] = n;
    Ok((dtype, part(&dims[..rank + 2])?))
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;

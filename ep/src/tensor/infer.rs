//! The rules of every op in one place: the dtypes that it accepts, and the dtype and shape of its output.

use crate::names::text::error_chain;
use crate::tensor::dtype::DType;
use crate::tensor::error::{OpError, ShapeError};
use crate::tensor::numbers::{MOST_INPUTS, MOST_PLACES, Numbers};
use crate::tensor::op::Op;
use crate::tensor::op_class::{OpClass, dtypes};
use crate::tensor::params::{Extra, Params};
use crate::tensor::rule::rule_of;
use crate::tensor::shape::{MAX_RANK, Shape, broadcast_shapes};
use crate::tensor::window::{ConvolutionForm, pooled};

use DType::{Bool, I64};

/// The dtype and shape of the output of `op`.
///
/// `inputs` are the tensors of the call. Of [numbers](crate::Numbers) among the inputs each counts as a tensor of rank 0.
///
/// The rules are those of the op's [class](OpClass). [`Params::axes`] are the axes of the op; none stands for all, except where the class
/// has exactly one.
///
/// # Errors
///
/// * [`OpError::Numbers`] and [`OpError::Value`] for [numbers](crate::Numbers) that the op, or the dtype, does not take.
/// * [`OpError::Rule`] with the error of the rule of a registered op.
/// * [`OpError::NoInputs`] for an op [without inputs](Op::is_source), whose output is given by the caller ([`check_source`]).
/// * [`OpError::EmptyReduction`] for a reduction over axes whose sizes have the product 0, unless the op [has a result](Op::reduces_no_elements) for no
///   elements.
/// * Otherwise an [`OpError`] that says which inputs or parameters the op accepts.
pub fn infer(op: Op, inputs: &[(DType, &Shape)], params: &Params) -> Result<(DType, Shape), OpError> {
    match &params.extra {
        _ if op.is_over_tensors() => infer_registered(op, inputs, params),
        Extra::Numbers(numbers) => infer_with_numbers(op, inputs, numbers),
        _ => infer_over_tensors(op, inputs, params),
    }
}

/// By the rule of an op over whole tensors.
fn infer_registered(op: Op, inputs: &[(DType, &Shape)], params: &Params) -> Result<(DType, Shape), OpError> {
    let Op::Registered(registered) = op else { return Err(OpError::NoInputs { op }) };
    if inputs.len() + params.numbers().len() != op.arity() {
        return Err(OpError::Arity { op, found: inputs.len() + params.numbers().len() });
    }
    if !params.numbers().fit(op) {
        return Err(OpError::Numbers { op });
    }
    match params.extra {
        Extra::Random { .. } if !registered.is_random() => return Err(OpError::DrawsNone { op }),
        _ if registered.is_random() => _ = params.checked_random(op)?,
        _ => {}
    }
    let rule = rule_of(registered).ok_or(OpError::NoInputs { op })?;
    let (dtype, shape) = rule(inputs, params).map_err(|error| OpError::Rule { op, reason: error_chain(&*error) })?;
    if registered.is_in_place() && inputs.first() != Some(&(dtype, &shape)) {
        return Err(OpError::OutputInPlace { op, found: Box::new((dtype, shape)) });
    }
    Ok((dtype, shape))
}

impl Numbers {
    /// Whether `op` takes numbers as these inputs, and a tensor as one that has the dtype of the numbers.
    #[inline]
    pub fn fit(&self, op: Op) -> bool {
        let takes = match op.class() {
            OpClass::Binary | OpClass::Comparison => 0..2,
            // The condition is a tensor.
            OpClass::Select => 1..3,
            OpClass::Ternary => 0..3,
            // All of its numbers, which come after the tensors.
            OpClass::Registered => {
                let Op::Registered(op) = op else { return false };
                let (all, len) = (op.arity(), op.numbers());
                return !self.are_too_many() && self.len() == len && (all - len..all).all(|it| self.contains(it));
            }
            _ => return self.is_empty(),
        };
        let fits = |input: usize| takes.contains(&input) || !self.contains(input);
        !self.are_too_many() && self.len() < takes.len() && (0..MOST_PLACES).all(fits)
    }
}

fn infer_with_numbers(op: Op, inputs: &[(DType, &Shape)], numbers: &Numbers) -> Result<(DType, Shape), OpError> {
    if !numbers.fit(op) {
        return Err(OpError::Numbers { op });
    }
    if inputs.len() + numbers.len() != op.arity() {
        return Err(OpError::Arity { op, found: inputs.len() + numbers.len() });
    }
    // Without the numbers, the key input has the same index: those before it are tensors, or it is the first.
    let Some(&(dtype, _)) = inputs.get(op.key_input()) else { return Err(OpError::Numbers { op }) };
    let mut tensors = inputs.iter();
    let mut all = [(dtype, &Shape::SCALAR); MOST_INPUTS];
    for (input, slot) in all[..op.arity()].iter_mut().enumerate() {
        match numbers.get(input) {
            Some(value) if op.supports(dtype) && !value.fits(dtype) => return Err(OpError::Value { op, value, dtype }),
            Some(_) => {}
            None => *slot = *tensors.next().unwrap_or_else(|| unreachable!("the inputs were counted")),
        }
    }
    infer_over_tensors(op, &all[..op.arity()], &Params::default())
}

fn infer_over_tensors(op: Op, inputs: &[(DType, &Shape)], params: &Params) -> Result<(DType, Shape), OpError> {
    if inputs.len() != op.arity() {
        return Err(OpError::Arity { op, found: inputs.len() });
    }
    let Some(&(dtype, shape)) = inputs.get(op.key_input()) else { return Err(OpError::NoInputs { op }) };
    if !op.supports(dtype) {
        return Err(OpError::DType { op, dtype, available: op.dtypes() });
    }
    match op.class() {
        OpClass::Unary => Ok((dtype, *shape)),
        OpClass::Predicate => Ok((Bool, *shape)),
        OpClass::Binary => pair(op, inputs[0], inputs[1]),
        OpClass::Comparison => Ok((Bool, pair(op, inputs[0], inputs[1])?.1)),
        OpClass::Select => {
            if inputs[0].0 != Bool {
                return Err(OpError::Condition { op, found: inputs[0].0 });
            }
            let (dtype, shape) = pair(op, inputs[1], inputs[2])?;
            Ok((dtype, broadcast(op, inputs[0].1, &shape)?))
        }
        OpClass::Ternary => {
            let (dtype, shape) = pair(op, inputs[0], inputs[1])?;
            pair(op, (dtype, &shape), inputs[2])
        }
        OpClass::Cast => Ok((params.to.ok_or(OpError::MissingTarget { op })?, *shape)),
        OpClass::Reduction => Ok((dtype, reduced(op, shape, params)?)),
        OpClass::ArgReduction => {
            one_axis(op, shape, params)?;
            Ok((I64, reduced(op, shape, params)?))
        }
        OpClass::MatMul => matmul(inputs[0], inputs[1]),
        OpClass::Softmax => {
            one_axis(op, shape, params)?;
            Ok((dtype, *shape))
        }
        OpClass::SoftmaxGradient => {
            let dtype = same_dtype(op, dtype, inputs[1].0)?;
            if shape != inputs[1].1 {
                let (left, right) = (Box::new(*shape), Box::new(*inputs[1].1));
                return Err(OpError::MixedShapes { op, left, right });
            }
            one_axis(op, shape, params)?;
            Ok((dtype, *shape))
        }
        OpClass::LayerNorm => layer_norm(inputs, params),
        OpClass::RmsNorm => {
            let dtype = same_dtype(op, dtype, inputs[1].0)?;
            let weight = inputs[1].1;
            if weight.rank() != 1 || weight.dims().last() != shape.dims().last() {
                return Err(OpError::RmsNormShapes { input: Box::new(*shape), weight: Box::new(*weight) });
            }
            params.checked_epsilon(op)?;
            Ok((dtype, *shape))
        }
        OpClass::CrossEntropy => Ok((dtype, losses(op, shape, inputs[1])?)),
        OpClass::CrossEntropyGradient => {
            let expected = losses(op, shape, inputs[1])?;
            let dtype = same_dtype(op, dtype, inputs[2].0)?;
            same_gradient(op, expected, inputs[2].1)?;
            Ok((dtype, *shape))
        }
        OpClass::Convolution => {
            let dtype = same_dtype(op, dtype, inputs[1].0)?;
            let form = ConvolutionForm::of(op, shape, inputs[1].1, params.checked_convolution(op)?)?;
            Ok((dtype, form.output().map_err(shape_error(op))?))
        }
        OpClass::ConvolutionGradient => {
            let dtype = same_dtype(op, same_dtype(op, dtype, inputs[1].0)?, inputs[2].0)?;
            let form = ConvolutionForm::of(op, shape, inputs[1].1, params.checked_convolution(op)?)?;
            same_gradient(op, form.output().map_err(shape_error(op))?, inputs[2].1)?;
            Ok((dtype, *inputs[usize::from(op == Op::Conv2dBackwardWeight)].1))
        }
        OpClass::Pooling => Ok((dtype, pooled(op, shape, params.checked_pooling(op)?)?)),
        OpClass::PoolingGradient => {
            let dtype = same_dtype(op, dtype, inputs[1].0)?;
            same_gradient(op, pooled(op, shape, params.checked_pooling(op)?)?, inputs[1].1)?;
            Ok((dtype, *shape))
        }
        OpClass::IndexSelect => index_select(inputs[0], inputs[1]),
        OpClass::Pad => Ok((dtype, padded(dtype, shape, params)?)),
        OpClass::OneHot => one_hot(shape, params),
        OpClass::Flip => {
            check_axes(op, shape, params)?;
            Ok((dtype, *shape))
        }
        OpClass::Triangle => {
            if shape.rank() < 2 {
                return Err(OpError::NoMatrix { op, shape: Box::new(*shape) });
            }
            params.checked_diagonal(op)?;
            Ok((dtype, *shape))
        }
        OpClass::RunningSum => {
            one_axis(op, shape, params)?;
            Ok((dtype, *shape))
        }
        OpClass::TakeAlongAxis => {
            check_indices(op, shape, inputs[1], params)?;
            Ok((dtype, *inputs[1].1))
        }
        OpClass::Scatter => {
            check_indices(op, shape, inputs[1], params)?;
            let dtype = same_dtype(op, dtype, inputs[2].0)?;
            let [indices, source] = [1, 2].map(|input| inputs[input].1);
            if indices != source {
                let [indices, source_shape] = [indices, source].map(|shape| Box::new(*shape));
                return Err(OpError::SourceShape { op, source_shape, indices });
            }
            Ok((dtype, *shape))
        }
        OpClass::ArgSort => Ok((I64, places(op, shape, params)?)),
        OpClass::Source | OpClass::Sequence => Err(OpError::NoInputs { op }),
        OpClass::Registered => infer_registered(op, inputs, params),
    }
}

/// A fast path of [`infer`] for most calls: `inputs` tensors that all have this dtype and one common shape, which is also the output's.
/// Returns the dtype of the output. `None` decides nothing: call [`infer`].
#[inline]
pub fn infer_alike(op: Op, inputs: usize, dtype: DType, params: &Params) -> Option<DType> {
    let decides = op.is_elementwise() && !matches!(op, Op::Cast | Op::Where);
    let mut fits = op.supports(dtype);
    if let Extra::Numbers(numbers) = &params.extra {
        fits &= numbers.fit(op) && numbers.iter().all(|(_, value)| value.fits(dtype));
    }
    fits &= inputs == params.tensors(op);
    (decides && fits).then_some(op.elementwise_output(dtype))
}

/// Checks that an op [without inputs](Op::is_source) can make an output of `dtype`.
///
/// # Errors
///
/// [`OpError::DType`], [`OpError::MissingExtra`]; [`OpError::Arity`] for an op with inputs.
pub fn check_source(op: Op, dtype: DType, params: &Params) -> Result<(), OpError> {
    if !op.is_source() {
        return Err(OpError::Arity { op, found: 0 });
    }
    if !op.supports(dtype) {
        return Err(OpError::DType { op, dtype, available: op.dtypes() });
    }
    match (op.class(), params.extra) {
        (OpClass::Source, _) => params.checked_random(op).map(|_| ()),
        (_, Extra::Floats { .. }) if dtype.is_float() => Ok(()),
        (_, Extra::Integers { .. }) if !dtype.is_float() => Ok(()),
        _ if dtype.is_float() => Err(OpError::MissingExtra { op, expected: "Extra::Floats" }),
        _ => Err(OpError::MissingExtra { op, expected: "Extra::Integers" }),
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

fn same_gradient(op: Op, expected: Shape, found: &Shape) -> Result<(), OpError> {
    if expected == *found {
        return Ok(());
    }
    Err(OpError::GradientShape { op, expected: Box::new(expected), found: Box::new(*found) })
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
            if dim == 0 && !op.reduces_no_elements() {
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

/// The caller has checked the number of inputs.
fn layer_norm(inputs: &[(DType, &Shape)], params: &Params) -> Result<(DType, Shape), OpError> {
    let op = Op::LayerNorm;
    let dtype = same_dtype(op, same_dtype(op, inputs[0].0, inputs[1].0)?, inputs[2].0)?;
    let [input, weight, bias] = [0, 1, 2].map(|place| inputs[place].1);
    let fits = |row: &Shape| row.rank() == 1 && row.dims().last() == input.dims().last();
    if !fits(weight) || !fits(bias) {
        let [input, weight, bias] = [input, weight, bias].map(|shape| Box::new(*shape));
        return Err(OpError::LayerNormShapes { input, weight, bias });
    }
    params.checked_epsilon(op)?;
    Ok((dtype, *input))
}

/// The shape of the losses of logits: one for each target.
fn losses(op: Op, logits: &Shape, (dtype, targets): (DType, &Shape)) -> Result<Shape, OpError> {
    if dtype != I64 {
        return Err(OpError::TargetDType { op, found: dtype });
    }
    match logits.dims().split_last() {
        Some((0, _)) => Err(OpError::EmptyReduction { op, shape: Box::new(*logits) }),
        Some((_, rows)) if rows == targets.dims() => Ok(*targets),
        _ => Err(OpError::TargetShape { op, logits: Box::new(*logits), targets: Box::new(*targets) }),
    }
}

fn index_select(table: (DType, &Shape), indices: (DType, &Shape)) -> Result<(DType, Shape), OpError> {
    let op = Op::IndexSelect;
    if !dtypes::INDICES.contains(&indices.0) {
        return Err(OpError::IndexDType { op, found: indices.0 });
    }
    let &[_, columns] = table.1.dims() else { return Err(OpError::TableRank { table: Box::new(*table.1) }) };
    let mut dims = [0; MAX_RANK + 1];
    let rank = indices.1.rank();
    dims[..rank].copy_from_slice(indices.1.dims());
    dims[rank] = columns;
    Ok((table.0, Shape::new(&dims[..rank + 1]).map_err(shape_error(op))?))
}

/// Checks that the indices are integers, and have the sizes of `input` on every axis but one.
fn check_indices(op: Op, input: &Shape, indices: (DType, &Shape), params: &Params) -> Result<(), OpError> {
    if !dtypes::INDICES.contains(&indices.0) {
        return Err(OpError::IndexDType { op, found: indices.0 });
    }
    one_axis(op, input, params)?;
    let sizes = || input.dims().iter().zip(indices.1.dims()).enumerate();
    for axis in params.axes.iter() {
        if input.rank() != indices.1.rank() || sizes().any(|(at, (own, other))| at != axis && own != other) {
            let [input, indices] = [input, indices.1].map(|shape| Box::new(*shape));
            return Err(OpError::AlongAxis { op, axis, input, indices });
        }
    }
    Ok(())
}

/// The shape of the indices of an argsort or argtopk.
fn places(op: Op, shape: &Shape, params: &Params) -> Result<Shape, OpError> {
    one_axis(op, shape, params)?;
    let mut dims = [0; MAX_RANK];
    let rank = shape.rank();
    dims[..rank].copy_from_slice(shape.dims());
    for axis in params.axes.iter() {
        let (_, count) = params.checked_order(op, dims[axis])?;
        if count > dims[axis] {
            return Err(OpError::TopCount { op, count, axis, shape: Box::new(*shape) });
        }
        dims[axis] = count;
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
    if left_batch.is_empty() && right_batch.is_empty() {
        return Ok((dtype, part(&[m, n])?));
    }
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

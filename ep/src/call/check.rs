//! The checks of every kernel before it touches memory. CPU kernels make them before they run, CUDA kernels before they are launched,
//! with the same errors.
//!
//! After [`checked_operands`], a kernel may rely on this:
//!
//! * The operands have the dtypes that it works on, and their elements are aligned.
//! * The output may be written, and no two of its indices reach the same element.
//! * No input overlaps the output, except as exactly the same view where that is allowed.

use smallvec::SmallVec;

use crate::call::kernel::KernelCall;
use crate::call::operand::Operand;
use crate::errors::error::{Error, KernelError};
use crate::tensor::dtype::DType;
use crate::tensor::error::OpError;
use crate::tensor::infer::infer;
use crate::tensor::op::Op;
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::{Shape, broadcast_shapes};

/// Whether the output may be exactly the view of an input.
#[derive(Copy, Clone, PartialEq)]
pub enum InPlace {
    /// It may.
    Allowed,
    /// It may not: that is an overlap.
    Refused,
}

/// The inputs and the output of a call, after all checks.
///
/// # Errors
///
/// The operands are other ones than these, not aligned, or overlap.
#[inline]
pub fn checked_operands<'a, const INPUTS: usize>(
    call: &'a KernelCall<'_, '_>,
    dtypes: [DType; INPUTS],
    output_dtype: DType,
    in_place: InPlace,
) -> Result<([&'a Operand<'a>; INPUTS], &'a Operand<'a>), KernelError> {
    let op = call.kernel.op;
    if call.inputs != INPUTS || call.operands.len() != INPUTS + 1 {
        return Err(KernelError::Operands {
            op,
            inputs: call.inputs,
            outputs: call.operands.len().saturating_sub(call.inputs),
        });
    }
    let output = &call.operands[INPUTS];
    check_operand(op, INPUTS, output, output_dtype)?;
    let refused = |source| KernelError::Operand { op, operand: INPUTS, source: Box::new(source) };
    output.check_writable().map_err(refused)?;
    check_self_overlap(output).map_err(refused)?;
    for (operand, dtype) in dtypes.into_iter().enumerate() {
        let input = &call.operands[operand];
        check_operand(op, operand, input, dtype)?;
        if output.overlaps(input) && !(in_place == InPlace::Allowed && output.same_view(input)) {
            return Err(KernelError::Overlap { op, written: INPUTS, other: operand });
        }
    }
    Ok((std::array::from_fn(|input| &call.operands[input]), output))
}

#[inline]
fn check_operand(op: Op, operand: usize, found: &Operand, expected: DType) -> Result<(), KernelError> {
    if found.dtype() != expected {
        return Err(KernelError::DType { op, operand, expected, found: found.dtype() });
    }
    found.check_aligned().map_err(|source| KernelError::Operand { op, operand, source: Box::new(source) })
}

/// Returns an error if two indices of the view reach the same element.
#[inline]
pub fn check_self_overlap(output: &Operand) -> Result<(), Error> {
    let layout = output.layout();
    if !output.is_contiguous() && layout.overlaps_itself() {
        return Err(Error::OverlapsItself { layout: Box::new(*layout) });
    }
    Ok(())
}

/// Returns an error unless the inputs broadcast to exactly the shape of the output.
#[inline]
pub fn check_broadcast(op: Op, inputs: &[&Operand], output: &Operand) -> Result<(), KernelError> {
    let shape = output.layout().shape();
    if inputs.iter().all(|input| input.layout().shape() == shape) || is_last_axes(inputs, shape) {
        return Ok(());
    }
    let found = *shape;
    let mut expected = *inputs[0].layout().shape();
    for input in &inputs[1..] {
        expected =
            broadcast_shapes(&expected, input.layout().shape()).map_err(|source| OpError::Shape { op, source })?;
    }
    if expected != found {
        return Err(KernelError::OutputShape { op, expected: Box::new(expected), found: Box::new(found) });
    }
    Ok(())
}

/// Whether one input has the output's shape, and the shape of each other input is a suffix of it, as where a row is added to a matrix. Such
/// inputs broadcast to the output, and this takes less than to find the shape to which they do.
fn is_last_axes(inputs: &[&Operand], output: &Shape) -> bool {
    let fits = |input: &&Operand| output.dims().ends_with(input.layout().shape().dims());
    inputs.iter().all(fits) && inputs.iter().any(|input| input.layout().shape() == output)
}

/// Returns an error unless the output has the dtype and shape that [`infer`] gives for `op`. The kernel passes its own op, because
/// `call.kernel.op` may differ.
pub fn check_inferred<const INPUTS: usize>(
    op: Op,
    inputs: [&Operand; INPUTS],
    output: &Operand,
    call: &KernelCall<'_, '_>,
) -> Result<(), KernelError> {
    let given = inputs.map(|input| (input.dtype(), input.layout().shape()));
    check_described(op, &given, output, call)
}

/// [`check_inferred`] for inputs of these dtypes and shapes.
fn check_described(
    op: Op,
    given: &[(DType, &Shape)],
    output: &Operand,
    call: &KernelCall<'_, '_>,
) -> Result<(), KernelError> {
    let (dtype, expected) = infer(op, given, call.params)?;
    let found = *output.layout().shape();
    if expected != found {
        return Err(KernelError::OutputShape { op, expected: Box::new(expected), found: Box::new(found) });
    }
    if dtype != output.dtype() {
        return Err(KernelError::DType { op, operand: given.len(), expected: dtype, found: output.dtype() });
    }
    Ok(())
}

/// Returns an error unless the operands of a registered op over tensors are those that its rule asks for. The output may be the view of an input that the op
/// [may write](Op::may_write).
///
/// # Errors
///
/// As [`checked_operands`] and [`check_inferred`].
pub fn check_over_tensors(call: &KernelCall<'_, '_>) -> Result<(), KernelError> {
    let op = call.kernel.op;
    let (tensors, found) = (op.arity() - call.params.numbers().len().min(op.arity()), call.operands.len());
    if call.inputs != tensors || found != tensors + 1 {
        return Err(KernelError::Operands { op, inputs: call.inputs, outputs: found.saturating_sub(call.inputs) });
    }
    let (inputs, output) = (&call.operands[..tensors], &call.operands[tensors]);
    let refused = |operand| move |source| KernelError::Operand { op, operand, source: Box::new(source) };
    output.check_writable().and_then(|()| check_self_overlap(output)).map_err(refused(tensors))?;
    for (operand, it) in call.operands.iter().enumerate() {
        it.check_aligned().map_err(refused(operand))?;
    }
    for (other, input) in inputs.iter().enumerate() {
        if output.overlaps(input) && !(op.may_write(other) && output.same_view(input)) {
            return Err(KernelError::Overlap { op, written: tensors, other });
        }
    }
    // The kernel, and code of a device, are chosen by it.
    if let Some(key) = inputs.get(op.key_input()).filter(|key| key.dtype() != call.kernel.dtype) {
        return Err(KernelError::DType {
            op,
            operand: op.key_input(),
            expected: call.kernel.dtype,
            found: key.dtype(),
        });
    }
    let described: SmallVec<[(DType, &Shape); 4]> =
        inputs.iter().map(|input| (input.dtype(), input.layout().shape())).collect();
    check_described(op, &described, output, call)
}

/// Returns an error unless a copy of these operands is allowed. `false` means that there is nothing to do, because both are the same
/// view.
pub fn check_copy(source: &Operand, target: &Operand) -> Result<bool, Error> {
    if source.dtype() != target.dtype() || source.layout().shape() != target.layout().shape() {
        return Err(Error::CopyMismatch {
            source_dtype: source.dtype(),
            source_shape: Box::new(*source.layout().shape()),
            target_dtype: target.dtype(),
            target_shape: Box::new(*target.layout().shape()),
        });
    }
    check_target(target)?;
    source.check_aligned()?;
    if target.overlaps(source) {
        if target.same_view(source) {
            return Ok(false);
        }
        return Err(Error::Overlap { written: 1, other: 0 });
    }
    Ok(true)
}

/// Returns an error unless a fill of `target` with `value` is allowed.
pub fn check_fill(target: &Operand, value: Scalar) -> Result<(), Error> {
    let dtype = target.dtype();
    if !value.fits(dtype) {
        return Err(Error::ScalarDoesNotFit { value, dtype });
    }
    check_target(target)
}

fn check_target(target: &Operand) -> Result<(), Error> {
    target.check_writable()?;
    target.check_aligned()?;
    check_self_overlap(target)
}

//! What every kernel checks before it touches memory: those of the CPU before they run, those of CUDA before they are
//! launched, with the same errors.
//!
//! A kernel that has called [`operands`] knows that its operands have the dtypes that it works on,
//! that elements are aligned, that the output may be written and does not reach an element twice,
//! and that no input meets the output, except as exactly the same view where that is allowed.

use crate::dtype::DType;
use crate::error::{Error, KernelError, OpError};
use crate::infer::infer;
use crate::kernel::KernelCall;
use crate::op::Op;
use crate::operand::Operand;
use crate::shape::broadcast_shapes;

/// May the output be exactly the view of an input?
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum InPlace {
    Allowed,
    Refused,
}

/// The inputs and the output of a call, checked.
#[inline]
pub(crate) fn operands<'a, const INPUTS: usize>(
    call: &'a KernelCall<'_>,
    dtypes: [DType; INPUTS],
    output_dtype: DType,
    in_place: InPlace,
) -> Result<([&'a Operand; INPUTS], &'a Operand), KernelError> {
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
    check_reach(output).map_err(refused)?;
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

/// Errs if the view reaches an element twice.
#[inline]
pub(crate) fn check_reach(output: &Operand) -> Result<(), Error> {
    let layout = output.layout();
    if !output.is_whole() && layout.overlaps_itself() {
        return Err(Error::OverlapsItself { layout: Box::new(*layout) });
    }
    Ok(())
}

/// Errs unless the inputs broadcast to exactly the shape of the output.
#[inline]
pub(crate) fn broadcast(op: Op, inputs: &[&Operand], output: &Operand) -> Result<(), KernelError> {
    let shape = output.layout().shape();
    if inputs.iter().all(|input| input.layout().shape() == shape) {
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

/// Errs unless the output has the dtype and shape that [`infer`] gives for `op`, which is the
/// kernel's own: what the call says it is may differ.
pub(crate) fn inferred<const INPUTS: usize>(
    op: Op,
    inputs: [&Operand; INPUTS],
    output: &Operand,
    call: &KernelCall<'_>,
) -> Result<(), KernelError> {
    let given = inputs.map(|input| (input.dtype(), input.layout().shape()));
    let (dtype, expected) = infer(op, &given, call.params)?;
    let found = *output.layout().shape();
    if expected != found {
        return Err(KernelError::OutputShape { op, expected: Box::new(expected), found: Box::new(found) });
    }
    if dtype != output.dtype() {
        return Err(KernelError::DType { op, operand: INPUTS, expected: dtype, found: output.dtype() });
    }
    Ok(())
}

//! The checks that make an instruction well formed: shapes, dtypes, places, overlaps. The builder and the parser share them, so a
//! list that was parsed from text keeps the same guarantees as a list that was built.

use std::borrow::Borrow;
use std::ptr;

use smallvec::SmallVec;
use streamvm_ep::{
    Access, DType, DeviceId, MAX_WRITES, Op, OpError, Params, Scalar, Shape, check_source, infer, infer_alike,
};
use streamvm_stream::{StreamKey, StreamType};

use crate::error::build_error::BuildError;
use crate::list::kind::{Kind, Role};
use crate::place::Place;
use crate::tensor::handle::Tensor;
use crate::tensor::reach::{check_copy_ends, check_not_upload, check_own, check_program, check_shown};
use crate::tensor::uses::{Declared, Use};
use crate::tensor::var::Var;

/// The device, dtype and shape of an op's output.
pub(crate) fn check_op(op: Op, inputs: &[&Tensor], params: &Params) -> Result<(DeviceId, DType, Shape), BuildError> {
    let described: SmallVec<[(DType, &Shape); 3]> =
        inputs.iter().map(|input| (input.dtype(), input.layout().shape())).collect();
    let refused = |error| match error {
        OpError::Value { value, dtype, .. } if !params.numbers().is_empty() => {
            BuildError::Value { what: op.name().to_owned(), value, dtype }
        }
        error if error.is_of_dtypes() => {
            let operands = inputs.iter().map(|input| input.dtype_and_shape()).collect::<Vec<_>>().join(", ");
            BuildError::DTypes { error, operands }
        }
        other => other.into(),
    };
    let (dtype, shape) = infer(op, &described, params).map_err(refused)?;
    Ok((check_device(op, inputs)?, dtype, shape))
}

/// The device and the output's dtype of an op whose inputs have one dtype and one shape, and whose output has that shape. `None` if
/// this short check does not apply: then call [`check_op`].
#[inline]
pub(crate) fn check_alike(
    op: Op,
    inputs: &[&Tensor],
    params: &Params,
) -> Result<Option<(DeviceId, DType)>, BuildError> {
    let Some((first, others)) = inputs.split_first() else { return Ok(None) };
    let (dtype, shape) = (first.dtype(), first.layout().shape());
    if !others.iter().all(|other| other.dtype() == dtype && other.layout().shape() == shape) {
        return Ok(None);
    }
    let Some(dtype) = infer_alike(op, inputs.len(), dtype, params) else { return Ok(None) };
    Ok(Some((check_device(op, inputs)?, dtype)))
}

/// The device that all inputs live on.
#[inline]
fn check_device(op: Op, inputs: &[&Tensor]) -> Result<DeviceId, BuildError> {
    let Some(device) = inputs.first().and_then(|input| input.place().device()) else {
        return Err(BuildError::OnHost { op });
    };
    match inputs.iter().find(|input| input.place() != Place::Device(device)) {
        Some(elsewhere) => Err(self::elsewhere(op.name(), elsewhere, device.into())),
        None => Ok(device),
    }
}

/// As [`check_op`], for an op whose output is given: the dtype, shape and device of an op without inputs are those of its output.
pub(crate) fn check_op_into(
    op: Op,
    inputs: &[&Tensor],
    params: &Params,
    output: &Tensor,
) -> Result<(DeviceId, DType, Shape), BuildError> {
    if !op.is_source() || !inputs.is_empty() {
        return check_op(op, inputs, params);
    }
    check_source(op, output.dtype(), params)?;
    let device = output.place().device().ok_or(BuildError::OnHost { op })?;
    Ok((device, output.dtype(), output.shape()))
}

/// Checks that an op shares no byte between its output and an input. An elementwise op, or one in place, may write exactly the view that it reads.
pub(crate) fn check_in_place(op: Op, inputs: &[&Tensor], output: &Tensor) -> Result<(), BuildError> {
    for (index, input) in inputs.iter().enumerate() {
        if op.may_write(index) && input.shares_storage(output) && input.layout() == output.layout() {
            continue;
        }
        if input.overlaps(output) {
            return Err(BuildError::Overlap {
                what: op.name().to_owned(),
                first: inputs.len(),
                second: index,
                help: "only an elementwise op may write exactly the view that it reads, and an op in place its first input; write to another tensor",
            });
        }
    }
    Ok(())
}

pub(crate) fn check_copy(source: &Tensor, target: &Tensor) -> Result<(), BuildError> {
    if (source.dtype(), source.shape()) != (target.dtype(), target.shape()) {
        let (from, to) = (source.dtype_and_shape(), target.dtype_and_shape());
        return Err(BuildError::Copy { from, to });
    }
    writable("copy", target)?;
    if source.overlaps(target) {
        let help = "copy by way of a third tensor";
        return Err(BuildError::Overlap { what: "copy".to_owned(), first: 1, second: 0, help });
    }
    Ok(())
}

pub(crate) fn check_fill(value: Scalar, target: &Tensor) -> Result<(), BuildError> {
    if !value.fits(target.dtype()) {
        return Err(BuildError::Value { what: "fill".to_owned(), value, dtype: target.dtype() });
    }
    writable("fill", target)?;
    check_not_upload("fill", target)
}

/// Checks an instruction that was not made by a call of the builder.
pub(crate) fn check<T: Borrow<Tensor>, V: Borrow<Var>>(
    stream: StreamKey,
    kind: &Kind,
    uses: &[Declared<T, V>],
) -> Result<(), BuildError> {
    let device = stream.device;
    if let Kind::SectionBegin(section) | Kind::SectionEnd(section) = kind {
        let same =
            |(u, own): (&Declared<T, V>, Use<'_>)| ptr::eq(u.resource(), own.resource()) && u.access() == own.access();
        let fits = uses.len() == section.resources().len() && uses.iter().zip(section.uses()).all(same);
        let fits = fits && !uses.is_empty() && stream.stream_type == StreamType::Critical;
        return if fits { Ok(()) } else { Err(BuildError::Section { what: kind.name().to_owned() }) };
    }
    check_form(kind, uses)?;
    let tensors: Vec<&Tensor> = uses.iter().filter_map(Declared::as_tensor).collect();
    match (kind, tensors.split_last()) {
        (Kind::Call { op, params }, Some((output, inputs))) => {
            let (place, dtype, shape) = check_op_into(*op, inputs, params, output)?;
            tensors.iter().try_for_each(|tensor| check_own(op.name(), stream, tensor))?;
            if place != device {
                let (found, expected) = (place.into(), device.into());
                let operand = output.dtype_and_shape();
                return Err(BuildError::Place { what: op.name().to_owned(), operand, found, expected });
            }
            check_output(op.name(), output, device.into(), dtype, &shape)?;
            check_not_upload(op.name(), output)?;
            check_in_place(*op, inputs, output)
        }
        (Kind::Copy, Some((target, [source]))) => {
            check_copy(source, target)?;
            check_copy_ends(stream, source, target)
        }
        (Kind::Fill(value), Some((target, []))) => {
            check_fill(*value, target)?;
            check_own("fill", stream, target)
        }
        (Kind::Allocate, Some((target, []))) => check_own("alloc", stream, target),
        (Kind::Function { role, name, body: Some(_) }, _) if role.is_of_program() => {
            Err(BuildError::ProgramCode { what: name.clone().into_owned() })
        }
        (Kind::Function { role, name, .. }, _) => check_function(name, *role, stream, uses),
        // The code of a barrier gets the bytes of its reads, as a function does.
        (Kind::Barrier { name, body, calls }, _) if *calls || body.is_some() => {
            check_function(name, Role::Function, stream, uses)
        }
        _ => Ok(()),
    }
}

/// Checks the number of uses of a kind and their accesses: tensors that are read, and then one that is written.
fn check_form<T: Borrow<Tensor>, V: Borrow<Var>>(kind: &Kind, uses: &[Declared<T, V>]) -> Result<(), BuildError> {
    let inputs = match kind {
        Kind::Call { op, params } => params.tensors(*op),
        Kind::Copy => 1,
        // A release may also name a variable.
        Kind::Release if matches!(uses, [only] if only.access() == Access::Write) => return Ok(()),
        Kind::Fill(_) | Kind::Allocate | Kind::Release => 0,
        Kind::Function { .. } | Kind::SectionBegin(_) | Kind::SectionEnd(_) => return Ok(()),
        // An update by a touch passes a failure on, and heals nothing.
        Kind::Touch if uses.iter().all(|u| u.access() != Access::Write) => return Ok(()),
        Kind::Touch | Kind::Record(_) | Kind::Wait { .. } | Kind::Barrier { .. } | Kind::GlobalSync => {
            // These instructions write no bytes, so a declared write would heal a failed resource without a value.
            let reads = uses.iter().all(|u| u.access() == Access::Read);
            return if reads { Ok(()) } else { Err(BuildError::WritesNothing { what: kind.name().to_owned() }) };
        }
    };
    let accesses =
        uses.iter().enumerate().map(|(place, u)| (u, if place < inputs { Access::Read } else { Access::Write }));
    let fits = |(u, access): (&Declared<T, V>, Access)| u.as_tensor().is_some() && u.access() == access;
    if uses.len() == inputs + 1 && accesses.into_iter().all(fits) {
        return Ok(());
    }
    Err(BuildError::Form { what: kind.name().to_owned(), inputs, found: uses.len() })
}

#[inline]
fn on(what: &str, tensor: &Tensor, expected: Place) -> Result<(), BuildError> {
    if tensor.place() == expected { Ok(()) } else { Err(elsewhere(what, tensor, expected)) }
}

#[cold]
fn elsewhere(what: &str, tensor: &Tensor, expected: Place) -> BuildError {
    BuildError::Place { what: what.to_owned(), operand: tensor.dtype_and_shape(), found: tensor.place(), expected }
}

fn writable(what: &str, tensor: &Tensor) -> Result<(), BuildError> {
    // A tensor that is no view has no gaps.
    if tensor.is_view() && tensor.layout().overlaps_itself() {
        return Err(BuildError::WritesBroadcast { what: what.to_owned() });
    }
    Ok(())
}

pub(crate) fn check_output(
    what: &str,
    output: &Tensor,
    place: Place,
    dtype: DType,
    shape: &Shape,
) -> Result<(), BuildError> {
    if output.shape() != *shape || output.dtype() != dtype {
        return Err(BuildError::Output {
            what: what.to_owned(),
            expected: Box::new(*shape),
            found: Box::new(output.shape()),
            expected_dtype: dtype,
            found_dtype: output.dtype(),
        });
    }
    writable(what, output)?;
    on(what, output, place)
}

/// Checks the operands of a function: see [`check_shown`] for the memory that a function may get. The operands of a function that
/// queues commands on a CUDA stream must live on the stream's device, and those of the steps of a program where [`check_program`] says. A function gets `&mut` slices of its writes, so a write may
/// share no byte with any other operand.
#[inline]
pub(crate) fn check_function<T: Borrow<Tensor>, V: Borrow<Var>>(
    what: &str,
    role: Role,
    stream: StreamKey,
    uses: &[Declared<T, V>],
) -> Result<(), BuildError> {
    // Variables have no bytes to check.
    if uses.iter().all(|u| u.as_tensor().is_none()) {
        return Ok(());
    }
    if role == Role::Push {
        // The function gets no bytes, so a tensor that it declared to overwrite would have no value.
        let overwrites = uses.iter().any(|u| u.as_tensor().is_some() && u.access() == Access::Write);
        return if overwrites { Err(BuildError::OrderAlone { what: what.to_owned() }) } else { Ok(()) };
    }
    check_tensors(what, role, stream, uses)
}

fn check_tensors<T: Borrow<Tensor>, V: Borrow<Var>>(
    what: &str,
    role: Role,
    stream: StreamKey,
    uses: &[Declared<T, V>],
) -> Result<(), BuildError> {
    let found = uses.iter().filter(|u| u.as_tensor().is_some() && u.access() != Access::Read).count();
    if found > MAX_WRITES {
        return Err(BuildError::TooManyWrites { what: what.to_owned(), found, most: MAX_WRITES });
    }
    for (first, u) in uses.iter().enumerate() {
        let Some(tensor) = u.as_tensor() else { continue };
        if role == Role::Cuda {
            check_own(what, stream, tensor)?;
            on(what, tensor, stream.device.into())?;
        } else if role.is_of_program() {
            check_program(what, stream, tensor, role == Role::Blocks)?;
        } else {
            check_shown(what, stream, tensor)?;
        }
        if u.access() == Access::Read {
            continue;
        }
        writable(what, tensor)?;
        check_not_upload(what, tensor)?;
        for (second, other) in uses.iter().enumerate() {
            if first != second && other.as_tensor().is_some_and(|other| other.overlaps(tensor)) {
                let help = "declare a tensor that is both read and written once, by update()";
                return Err(BuildError::Overlap { what: what.to_owned(), first, second, help });
            }
        }
    }
    Ok(())
}

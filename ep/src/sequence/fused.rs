//! Elementwise steps that one kernel of a device computes together: their description, made from checked steps.
//!
//! The kernel computes all steps for one index, then for the next, while other threads compute other indices. That gives the results of the steps one
//! after the other, if
//!
//! * every step is an elementwise kernel, a copy or a fill, and all outputs have one shape, to which the inputs broadcast;
//! * of two views that share bytes, one of them written by the kernel, both are exactly the same view;
//! * what is not stored is read only by later steps of the group, as it was written.
//!
//! [`describe`] checks that. Invariant: because of the second, threads that compute different indices do not race.

use smallvec::SmallVec;

use crate::call::operand::Access;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::fused_group::{FusedGroup, FusedInput, FusedStep, FusedView, FusedWork, MOST_FUSED_VIEWS};
use crate::sequence::group::check_steps;
use crate::sequence::step::{SequenceOperand, SequenceStep, SequenceWork};
use crate::tensor::dtype::DType;

/// Memory that steps of the group use through one view.
struct Place<'s> {
    /// The view, broadcast to the shape of the group.
    operand: SequenceOperand,
    /// The step that names it first.
    first: &'s SequenceStep,
    /// The dtype as which it is read before a step of the group writes it.
    read: Option<DType>,
    /// The last step that has written it, and whether any of them must be stored.
    written: Option<(DType, usize)>,
    stored: bool,
    /// Its number among the views of the group.
    view: Option<usize>,
}

/// The description of steps whose first has the number `first`, and the views of memory in the order of the description. `unstored` tells of a step,
/// counted from the first, whether its output need not be stored.
///
/// # Errors
/// [`SequenceError::Group`]
pub(super) fn describe(
    first: usize,
    steps: &[&SequenceStep],
    unstored: impl Fn(usize) -> bool,
) -> Result<(FusedGroup, Vec<SequenceOperand>), SequenceError> {
    let refused = |place: usize, what: String| SequenceError::Group { step: first + place, what };
    let shape = check_steps(first, steps.iter().copied())?;
    let mut places: Vec<Place<'_>> = Vec::new();
    let mut described = Vec::with_capacity(steps.len());
    for (number, step) in steps.iter().enumerate() {
        if let SequenceWork::Kernel(kernel, params) = &step.work
            && params.refuses_elements(kernel.op, kernel.dtype)
        {
            return Err(refused(number, format!("{} of {} refuses some elements", kernel.op, kernel.dtype)));
        }
        let Some((output, inputs)) = step.operands.split_last() else { continue };
        let mut place_of = |operand: &SequenceOperand| {
            let layout = operand.layout.broadcast_to(&shape);
            let layout = layout.unwrap_or_else(|_| unreachable!("`check_steps` has checked the shapes"));
            let operand = SequenceOperand { layout, ..operand.clone() };
            let known = places.iter().position(|place| same_view(&place.operand, &operand));
            known.unwrap_or_else(|| {
                let place = Place { operand, first: step, read: None, written: None, stored: false, view: None };
                places.push(place);
                places.len() - 1
            })
        };
        let input_places: SmallVec<[usize; 3]> = inputs.iter().map(&mut place_of).collect();
        let output_place = place_of(output);
        let mut fused_inputs = SmallVec::new();
        for (input, &place) in inputs.iter().zip(&input_places) {
            let place = &mut places[place];
            let is_of = |dtype: DType| {
                let what = format!("it reads {}, where an earlier step has or reads {dtype}", input.dtype);
                if dtype == input.dtype { Ok(()) } else { Err(refused(number, what)) }
            };
            fused_inputs.push(match place.written {
                Some((dtype, writer)) => is_of(dtype).map(|()| FusedInput::Step(writer))?,
                None => {
                    is_of(*place.read.get_or_insert(input.dtype))?;
                    FusedInput::View(0)
                }
            });
        }
        let place = &mut places[output_place];
        place.written = Some((output.dtype, number));
        place.stored |= !unstored(number);
        described.push((input_places, FusedStep { work: work(step), inputs: fused_inputs, dtype: output.dtype }));
    }
    check_overlaps(first, steps, &places)?;
    let mut views = Vec::new();
    let mut operands = Vec::new();
    for place in places.iter_mut().filter(|place| place.read.is_some() || place.stored) {
        let written = place.written.filter(|_| place.stored);
        place.view = Some(views.len());
        views.push(FusedView { read: place.read, written });
        let access = match (place.read, written) {
            (Some(_), Some(_)) => Access::ReadWrite,
            (_, Some(_)) => Access::Write,
            _ => Access::Read,
        };
        operands.push(SequenceOperand { access, ..place.operand.clone() });
    }
    if views.len() > MOST_FUSED_VIEWS {
        return Err(refused(
            0,
            format!("its group has {} views of memory; at most {MOST_FUSED_VIEWS} fit", views.len()),
        ));
    }
    let steps = described.into_iter().zip(steps).map(|((places_of, mut step), from)| {
        for (input, place) in step.inputs.iter_mut().zip(places_of) {
            if let FusedInput::View(view) = input {
                *view = places[place].view.unwrap_or_else(|| unreachable!("a place that is read has a view"));
            }
        }
        if let SequenceWork::Kernel(_, params) = &from.work {
            for (place, value) in params.numbers().iter() {
                step.inputs.insert(place, FusedInput::Number(value));
            }
        }
        step
    });
    Ok((FusedGroup { views, steps: steps.collect() }, operands))
}

/// Whether both are the same elements of the same memory, in the same order.
fn same_view(one: &SequenceOperand, other: &SequenceOperand) -> bool {
    one.memory == other.memory
        && one.dtype.size() == other.dtype.size()
        && one.layout.offset() == other.layout.offset()
        && one.layout.same_steps(&other.layout)
}

/// Checks that of two different views that share bytes none is written. Two that are not stored may share bytes: the kernel has neither in memory.
fn check_overlaps(first: usize, steps: &[&SequenceStep], places: &[Place<'_>]) -> Result<(), SequenceError> {
    let in_memory = |place: &Place<'_>| place.read.is_some() || place.stored;
    for (number, one) in places.iter().enumerate() {
        for other in &places[number + 1..] {
            let harmless = (one.written.is_none() && other.written.is_none()) || !(in_memory(one) || in_memory(other));
            if !harmless && one.operand.overlaps(&other.operand) {
                let step = steps.iter().position(|step| std::ptr::eq(*step, other.first)).unwrap_or(0);
                let what = "it uses bytes that its group writes through another view".to_owned();
                return Err(SequenceError::Group { step: first + step, what });
            }
        }
    }
    Ok(())
}

fn work(step: &SequenceStep) -> FusedWork {
    match &step.work {
        SequenceWork::Kernel(kernel, _) => FusedWork::Call(kernel.op, kernel.dtype),
        SequenceWork::Fill(value) => FusedWork::Fill(*value),
        SequenceWork::Copy => FusedWork::Copy,
        _ => unreachable!("`check_steps` has refused other work"),
    }
}

#[cfg(test)]
#[path = "fused_tests.rs"]
mod tests;

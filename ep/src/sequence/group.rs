//! Groups of elementwise steps of one shape: what devices that run such steps together ask of them.

use std::ops::Range;

use crate::errors::sequence_error::SequenceError;
use crate::sequence::step::{SequenceStep, SequenceWork};
use crate::tensor::shape::Shape;

/// Elementwise steps that may run together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceGroup {
    /// The numbers of the steps.
    pub steps: Range<usize>,
    /// How many elements a block has at most, for a device that computes all steps for one block of elements before the next one; else 0.
    pub block: usize,
    /// The numbers of those steps whose output only later steps of the group read. A kernel that computes all of them need not store it.
    pub unstored: Vec<usize>,
}

/// Checks that each step is elementwise; returns the shape of all outputs.
pub fn check_steps<'s>(
    first: usize,
    steps: impl Iterator<Item = &'s SequenceStep> + Clone,
) -> Result<Shape, SequenceError> {
    let refused = |place: usize, what: String| Err(SequenceError::Group { step: first + place, what });
    let output = |step: &SequenceStep| step.operands.last().map(|output| *output.layout.shape());
    let Some(shape) = steps.clone().next().and_then(output) else {
        return refused(0, "there is none".to_owned());
    };
    for (place, step) in steps.enumerate() {
        if let SequenceWork::Kernel(kernel, _) = &step.work
            && !kernel.op.is_elementwise()
        {
            return refused(place, format!("{} is not elementwise", kernel.op));
        }
        if !matches!(step.work, SequenceWork::Kernel(..) | SequenceWork::Copy | SequenceWork::Fill(_)) {
            return refused(place, "it is no kernel, copy or fill".to_owned());
        }
        let Some((output, inputs)) = step.operands.split_last() else { continue };
        if *output.layout.shape() != shape {
            return refused(place, format!("it writes {}, and the first step {shape}", output.layout.shape()));
        }
        if output.layout.overlaps_itself() {
            return refused(place, format!("two indices of its output, {}, are one element", output.layout.shape()));
        }
        if let Some(input) = inputs.iter().find(|input| input.layout.broadcast_to(&shape).is_err()) {
            return refused(place, format!("an input of {} does not broadcast to {shape}", input.layout.shape()));
        }
    }
    Ok(shape)
}

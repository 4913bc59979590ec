//! Pass: removes steps whose results nobody fetches.
//!
//! It walks the steps from the last to the first, and knows which values are *live*: read by a later step that is kept, fetched, or a
//! parameter, which outlives the run. A step that writes a live value is kept. A write of a whole value ends the need for what was in it.

use crate::ir::program::{Program, ValueRole};

/// The numbers of the steps that are kept, ascending.
pub(super) fn kept_steps(program: &Program) -> Vec<usize> {
    let mut live: Vec<bool> =
        program.values.iter().map(|value| matches!(value.role, ValueRole::Parameter(_))).collect();
    program.fetches.iter().for_each(|fetch| live[fetch.value.0] = true);
    let mut kept = Vec::new();
    for (number, step) in program.steps.iter().enumerate().rev() {
        let Some(output) = step.output().filter(|output| live[output.value.0]) else { continue };
        if program.is_whole(output.value, &output.layout) {
            live[output.value.0] = false;
        }
        step.inputs().for_each(|input| live[input.value.0] = true);
        kept.push(number);
    }
    kept.reverse();
    kept
}

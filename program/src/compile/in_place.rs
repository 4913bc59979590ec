//! Pass: a step writes over an input that ends there, so that both values share one piece of memory.
//!
//! The conditions:
//! * The op may write this input: it is elementwise, or a registered op in place. The input is the same view as the output: whole, of the same size in bytes per element.
//! * The input exists within the run only: no feed, parameter or fetch. One stream alone uses it and the output.
//! * The step is the input's last use, and every use of the input in this step is that same view.
//! * The step is the output's first use.

use std::ops::Range;

use crate::compile::homes::Home;
use crate::ir::program::{Operand, Program, Step, ValueId, Work};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// For each value the value whose memory it takes over: itself, or the first of a chain of values.
pub(super) type Shares = Vec<ValueId>;

/// No value takes over another's memory.
pub(super) fn none(program: &Program) -> Shares {
    (0..program.values.len()).map(ValueId).collect()
}

pub(super) fn find(
    program: &Program,
    kept: &[usize],
    homes: &[Home],
    lifetimes: &[Range<usize>],
    options: &CompileOptions,
) -> Shares {
    let in_arena = |value: ValueId| matches!(homes[value.0], Home::Arena(_));
    let mut shares = none(program);
    for (position, &number) in kept.iter().enumerate() {
        let step = &program.steps[number];
        let Some(output) = step.output().filter(|_| matches!(step.work, Work::Call(..))) else { continue };
        if !in_arena(output.value) || lifetimes[output.value.0].start != position || !program.is_whole(output) {
            continue;
        }
        let ends_here = |(place, input): &(usize, &Operand)| {
            may_write(step, *place)
                && homes[input.value.0] == homes[output.value.0]
                && input.value != output.value
                && (lifetimes[input.value.0].end == position + 1 || options.has(Mutant::InPlaceThoughRead))
                && program.is_whole(input)
                && size(program, input) == size(program, output)
                && step.inputs().enumerate().all(|(place, other)| {
                    other.value != input.value || (is_same_view(other, output) && may_write(step, place))
                })
        };
        if let Some((_, input)) = step.inputs().enumerate().find(ends_here) {
            shares[output.value.0] = shares[input.value.0];
        }
    }
    shares
}

/// Whether both are the same view of a whole value, whatever the sizes of feeds.
fn is_same_view(one: &Operand, other: &Operand) -> bool {
    one.layout == other.layout && one.varying == other.varying
}

/// Whether the output may lie where this input lies.
fn may_write(step: &Step, input: usize) -> bool {
    matches!(&step.work, Work::Call(op, _) if op.may_write(input))
}

fn size(program: &Program, operand: &Operand) -> usize {
    program.value(operand.value).dtype.size()
}

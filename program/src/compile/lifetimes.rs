//! Pass: between which steps each value lives.
//!
//! A value that is written before a loop and used in it lives for the whole loop, because the next round uses it again. A value that a step of
//! a block writes first is of no use outside of the block, so nothing else needs care.

use std::ops::Range;

use crate::compile::lists::Lists;
use crate::compile::value_uses::ValueUse;
use crate::ir::program::{Program, Work};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// For each value the steps that use it, as positions in the order in which the steps run: from the first up to one past the last. Empty for a
/// value that no kept step uses. `kept` has the numbers of the kept steps in that order, and `uses` what each step of the program uses.
pub(super) fn of(
    program: &Program,
    kept: &[usize],
    uses: &Lists<ValueUse>,
    options: &CompileOptions,
) -> Vec<Range<usize>> {
    let mut lifetimes = vec![0..0; program.values.len()];
    for (position, &number) in kept.iter().enumerate() {
        for ValueUse { value, .. } in &uses[number] {
            let life = &mut lifetimes[value.0];
            if life.start == life.end {
                life.start = position;
            }
            life.end = position + 1;
        }
    }
    if options.has(Mutant::LastUseTooEarly) {
        lifetimes.iter_mut().filter(|life| life.len() > 1).for_each(|life| life.end -= 1);
    }
    if options.has(Mutant::LoopEdgeMissing) {
        return lifetimes;
    }
    // Inner loops end first.
    let mut open = Vec::new();
    for (position, &number) in kept.iter().enumerate() {
        match program.steps[number].work {
            Work::If | Work::While => open.push(position),
            Work::End => {
                let begin = open.pop().filter(|&begin| program.steps[kept[begin]].work == Work::While);
                begin.into_iter().for_each(|begin| extend_over(begin..position + 1, kept, uses, &mut lifetimes));
            }
            _ => {}
        }
    }
    lifetimes
}

/// Extends the lifetimes of values that a loop uses and that were written before it.
fn extend_over(steps: Range<usize>, kept: &[usize], uses: &Lists<ValueUse>, lifetimes: &mut [Range<usize>]) {
    for &number in &kept[steps.clone()] {
        for ValueUse { value, .. } in &uses[number] {
            let life = &mut lifetimes[value.0];
            if life.start < steps.start {
                life.end = life.end.max(steps.end);
            }
        }
    }
}

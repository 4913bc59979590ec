//! Pass: between which steps each value lives.

use std::ops::Range;

use crate::ir::program::Program;

/// For each value the steps that use it, as positions among the kept steps: from the first to behind the last. Empty for a value that no
/// kept step uses.
pub(super) fn of(program: &Program, kept: &[usize]) -> Vec<Range<usize>> {
    let mut lifetimes = vec![0..0; program.values.len()];
    for (position, &number) in kept.iter().enumerate() {
        for operand in &program.steps[number].operands {
            let life = &mut lifetimes[operand.value.0];
            if life.start == life.end {
                life.start = position;
            }
            life.end = position + 1;
        }
    }
    lifetimes
}

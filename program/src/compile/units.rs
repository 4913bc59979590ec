//! Units: what the compiler moves as a whole. A unit is a step, or an outermost block with all steps in it.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::StreamKey;

use crate::compile::extents::{self, dense};
use crate::compile::homes::Home;
use crate::compile::lists::Lists;
use crate::compile::pieces::{Pieces, Use};
use crate::compile::users::Users;
use crate::compile::value_uses::ValueUse;
use crate::compile::whole_uses::WholeUses;
use crate::ir::program::{Operand, Program, ValueId, Work};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// The units of the kept steps, in program order, as ranges of positions among these.
pub(super) fn of(program: &Program, kept: &[usize]) -> Vec<Range<usize>> {
    let mut units = Vec::with_capacity(kept.len());
    let (mut depth, mut begin) = (0, 0);
    for (position, &number) in kept.iter().enumerate() {
        match program.steps[number].work {
            Work::If | Work::While => depth += 1,
            Work::End => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            units.push(begin..position + 1);
            begin = position + 1;
        }
    }
    units
}

/// For each unit the earlier ones that it must come after, ascending: those that wrote bytes which it reads or writes, and those that read
/// bytes which it writes. Where one of these comes after another for the same bytes, the earlier may be left out. Values that no step writes bring
/// no dependences. Takes time in proportion to the steps and the dependences, times the logarithm of the pieces that the views of a value cut
/// it into.
pub(super) fn dependences(
    program: &Program,
    kept: &[usize],
    uses: &Lists<ValueUse>,
    units: &[Range<usize>],
    options: &CompileOptions,
) -> Lists<usize> {
    let of_values = UsesOfValue::of_all(program, kept);
    let mut whole = WholeUses::new(program.values.len());
    let mut divided: HashMap<ValueId, Pieces> = HashMap::new();
    let mut found = Lists::with_capacity(units.len());
    let mut earlier = Vec::new();
    for (unit, positions) in units.iter().enumerate() {
        for &number in &kept[positions.clone()] {
            for (place, ValueUse { value, access }) in uses[number].iter().enumerate() {
                let UsesOfValue { is_written, is_divided } = of_values[value.0];
                if !is_written {
                    continue;
                }
                if is_divided {
                    let by = Use { unit, bytes: bytes_of(program, &program.steps[number].operands[place]) };
                    let pieces = divided.entry(*value).or_default();
                    if access.writes() { pieces.write(by, &mut earlier) } else { pieces.read(by, &mut earlier) }
                } else if access.writes() {
                    whole.write(*value, unit, &mut earlier);
                } else {
                    whole.read(*value, unit, &mut earlier);
                }
            }
        }
        earlier.sort_unstable();
        earlier.dedup();
        earlier.retain(|other| *other != unit);
        if options.has(Mutant::DependenceDropped) && unit.is_multiple_of(2) {
            earlier.clear();
        }
        found.push(earlier.drain(..));
    }
    found
}

/// Which uses of a value the kept steps have.
#[derive(Copy, Clone, Default)]
struct UsesOfValue {
    /// A step writes it.
    is_written: bool,
    /// A step uses a part of it.
    is_divided: bool,
}

impl UsesOfValue {
    /// The uses of each value.
    fn of_all(program: &Program, kept: &[usize]) -> Vec<UsesOfValue> {
        let mut found = vec![UsesOfValue::default(); program.values.len()];
        for operand in kept.iter().flat_map(|&number| &program.steps[number].operands) {
            let known = &mut found[operand.value.0];
            known.is_written |= operand.access.writes();
            known.is_divided |= !is_whole(program, operand);
        }
        found
    }
}

/// Whether a view counts as the whole value, as [`bytes_of`] tells.
fn is_whole(program: &Program, operand: &Operand) -> bool {
    operand.layout.elements() == 0 || program.is_whole(operand)
}

/// The bytes of a value that a view uses. A view without elements counts as the whole value, because a step that reads it must come after one that
/// makes the value; a value without elements counts as one byte.
fn bytes_of(program: &Program, operand: &Operand) -> Footprint {
    let bytes = program.value(operand.value).bytes();
    if operand.layout.elements() == 0 { dense(0..bytes.max(1)) } else { extents::of(program, operand) }
}

/// What a unit declares of a value.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) value: ValueId,
    pub(super) access: Access,
    pub(super) bytes: Footprint,
}

/// For each unit what it declares of the values that steps of several streams use, and that lie in no arena.
pub(super) fn shared_uses(
    program: &Program,
    kept: &[usize],
    uses: &Lists<ValueUse>,
    units: &[Range<usize>],
    streams: &[StreamKey],
    homes: &[Home],
) -> Lists<Declared> {
    if streams.iter().all(|stream| *stream == streams[0]) {
        return Lists::empty(units.len());
    }
    let mut users = Users::new(program.values.len());
    for (unit, stream) in units.iter().zip(streams) {
        let uses = kept[unit.clone()].iter().flat_map(|&number| &uses[number]);
        let has_buffer = |it: &&ValueUse| !matches!(homes[it.value.0], Home::Arena(_));
        uses.filter(has_buffer).for_each(|it| users.add(it.value.0, *stream));
    }
    let mut found = Lists::with_capacity(units.len());
    let mut of_unit: Vec<Declared> = Vec::new();
    for unit in units {
        for &number in &kept[unit.clone()] {
            let shared = uses[number].iter().enumerate().filter(|(_, it)| users.are_several(it.value.0));
            for (place, &ValueUse { value, access }) in shared {
                let bytes = extents::of(program, &program.steps[number].operands[place]);
                match of_unit.iter_mut().find(|known| known.value == value) {
                    Some(known) => {
                        known.access = extents::both(known.access, access);
                        known.bytes = extents::joined(&known.bytes, &bytes);
                    }
                    None => of_unit.push(Declared { value, access, bytes }),
                }
            }
        }
        found.push(of_unit.drain(..));
    }
    found
}

#[cfg(test)]
#[path = "units_tests.rs"]
mod tests;

//! Units: what the compiler moves as a whole. A unit is a step, or an outermost block with all steps in it.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashMap;

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
/// bytes which it writes. Where one of these comes after another for the same bytes, the earlier may be left out. A view counts as all bytes
/// from its first to its last. Values that no step writes bring no dependences. Takes time in proportion to the steps and the dependences, times
/// the logarithm of the pieces that the views of a value cut it into.
pub(super) fn dependences(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    options: &CompileOptions,
) -> Vec<Vec<usize>> {
    let mut written = vec![false; program.values.len()];
    let outputs = kept.iter().flat_map(|&number| program.steps[number].outputs());
    outputs.for_each(|output| written[output.value.0] = true);
    let mut values: HashMap<ValueId, Pieces> = HashMap::new();
    let mut found = Vec::with_capacity(units.len());
    for (unit, positions) in units.iter().enumerate() {
        let mut earlier = Vec::new();
        let operands = kept[positions.clone()].iter().flat_map(|&number| &program.steps[number].operands);
        for operand in operands.filter(|operand| written[operand.value.0]) {
            let bytes = bytes_of(program, operand);
            let pieces = values.entry(operand.value).or_default();
            if operand.access.writes() {
                pieces.write(unit, bytes, &mut earlier);
            } else {
                pieces.read(unit, bytes, &mut earlier);
            }
        }
        earlier.sort_unstable();
        earlier.dedup();
        earlier.retain(|other| *other != unit);
        if options.has(Mutant::DependenceDropped) && unit.is_multiple_of(2) {
            earlier.clear();
        }
        found.push(earlier);
    }
    found
}

/// The bytes of a value from the first to the last of a view. A view without elements counts as the whole value, because a step that reads it
/// must come after one that makes the value; a value without elements counts as one byte.
fn bytes_of(program: &Program, operand: &Operand) -> Range<usize> {
    let (elements, value) = (operand.layout.span_elements(), program.value(operand.value));
    if elements.is_empty() {
        0..value.bytes().max(1)
    } else {
        elements.start * value.dtype.size()..elements.end * value.dtype.size()
    }
}

/// How many pieces a read keeps apart. Beyond that it counts as a write of all of them: a unit that writes or reads these bytes later is ordered
/// after this read, and so also after everything before the read.
const MOST_PIECES: usize = 64;

/// The bytes of a value in pieces that units have used alike, by their first bytes.
#[derive(Default)]
struct Pieces(BTreeMap<usize, Piece>);

#[derive(Clone)]
struct Piece {
    end: usize,
    /// The unit that wrote it last.
    writer: Option<usize>,
    /// The units that have read it since then.
    readers: Vec<usize>,
}

impl Pieces {
    /// Adds a read, and to `earlier` the units that it must come after.
    fn read(&mut self, unit: usize, bytes: Range<usize>, earlier: &mut Vec<usize>) {
        self.cut(bytes.start);
        self.cut(bytes.end);
        if self.0.range(bytes.clone()).nth(MOST_PIECES).is_some() {
            return self.write(unit, bytes, earlier);
        }
        let (mut gaps, mut known) = (Vec::new(), bytes.start);
        for (&start, piece) in self.0.range_mut(bytes.clone()) {
            if known < start {
                gaps.push(known..start);
            }
            known = piece.end;
            earlier.extend(piece.writer);
            if piece.readers.last() != Some(&unit) {
                piece.readers.push(unit);
            }
        }
        if known < bytes.end {
            gaps.push(known..bytes.end);
        }
        self.0
            .extend(gaps.into_iter().map(|gap| (gap.start, Piece { end: gap.end, writer: None, readers: vec![unit] })));
    }

    /// Adds a write, and to `earlier` the units that it must come after. A unit that comes after this one comes after those, too.
    fn write(&mut self, unit: usize, bytes: Range<usize>, earlier: &mut Vec<usize>) {
        self.cut(bytes.start);
        self.cut(bytes.end);
        let overwritten: Vec<usize> = self.0.range(bytes.clone()).map(|(start, _)| *start).collect();
        for piece in overwritten.into_iter().filter_map(|start| self.0.remove(&start)) {
            earlier.extend(piece.writer);
            earlier.extend(piece.readers);
        }
        self.0.insert(bytes.start, Piece { end: bytes.end, writer: Some(unit), readers: Vec::new() });
    }

    /// Cuts the piece around a byte into two, of which the second begins there.
    fn cut(&mut self, at: usize) {
        let Some((_, piece)) = self.0.range_mut(..at).next_back() else { return };
        if piece.end > at {
            let rest = piece.clone();
            piece.end = at;
            self.0.insert(at, rest);
        }
    }
}

//! Units: what the compiler moves as a whole. A unit is a step, or an outermost block with all steps in it.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::StreamKey;

use crate::compile::extents::{self, dense, is_dense};
use crate::compile::homes::Home;
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
            let by = Use { unit, bytes: bytes_of(program, operand) };
            let pieces = values.entry(operand.value).or_default();
            if operand.access.writes() {
                pieces.write(by, &mut earlier);
            } else {
                pieces.read(by, &mut earlier);
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
    units: &[Range<usize>],
    streams: &[StreamKey],
    homes: &[Home],
) -> Vec<Vec<Declared>> {
    let operands = |unit: usize| kept[units[unit].clone()].iter().flat_map(|&number| &program.steps[number].operands);
    // For each value its stream, or `None` where there are several.
    let mut stream_of: HashMap<ValueId, Option<StreamKey>> = HashMap::new();
    for (unit, stream) in streams.iter().enumerate() {
        for operand in operands(unit).filter(|operand| !matches!(homes[operand.value.0], Home::Arena(_))) {
            let known = stream_of.entry(operand.value).or_insert(Some(*stream));
            *known = known.filter(|known| known == stream);
        }
    }
    let declared = |unit: usize| {
        let mut found: Vec<Declared> = Vec::new();
        for operand in operands(unit).filter(|operand| stream_of.get(&operand.value) == Some(&None)) {
            let (value, access, bytes) = (operand.value, operand.access, extents::of(program, operand));
            match found.iter_mut().find(|known| known.value == value) {
                Some(known) => {
                    known.access = extents::both(known.access, access);
                    known.bytes = extents::joined(&known.bytes, &bytes);
                }
                None => found.push(Declared { value, access, bytes }),
            }
        }
        found
    };
    (0..units.len()).map(declared).collect()
}

/// How many pieces a view with gaps, or a read, keeps apart, and how many uses a piece has by views with gaps. Beyond that a use counts as a write of all
/// bytes from its first to its last: a unit that uses these bytes later is ordered after this one, and so also after everything before it.
const MOST_KEPT: usize = 64;

/// A use of bytes by a unit.
#[derive(Clone)]
struct Use {
    unit: usize,
    bytes: Footprint,
}

/// The bytes of a value in pieces, by their first bytes: views cut them where they begin and end. Within a piece, uses by views with gaps are compared
/// with each other exactly.
#[derive(Default)]
struct Pieces(BTreeMap<usize, Piece>);

#[derive(Clone, Default)]
struct Piece {
    end: usize,
    /// The last writes: one that covers the piece, and later ones with gaps.
    writes: SmallVec<[Use; 1]>,
    /// Those that have read it and that no later write covers.
    reads: Vec<Use>,
}

impl Piece {
    /// Adds to `earlier` the uses that a read, or a write, must come after.
    fn note(&self, by: &Use, writes: bool, earlier: &mut Vec<usize>) {
        let reads = self.reads.iter().filter(|_| writes);
        earlier
            .extend(self.writes.iter().chain(reads).filter(|other| other.bytes.overlaps(&by.bytes)).map(|it| it.unit));
    }
}

impl Pieces {
    /// Adds a read, and to `earlier` the units that it must come after.
    fn read(&mut self, by: Use, earlier: &mut Vec<usize>) {
        let bytes = self.cut_around(&by.bytes);
        if self.0.range(bytes.clone()).nth(MOST_KEPT).is_some() {
            return self.overwrite(by.unit, bytes, earlier);
        }
        let (mut gaps, mut known) = (Vec::new(), bytes.start);
        for (&start, piece) in self.0.range_mut(bytes.clone()) {
            if known < start {
                gaps.push(known..start);
            }
            known = piece.end;
            piece.note(&by, false, earlier);
            if piece.reads.last().is_none_or(|last| last.unit != by.unit || last.bytes != by.bytes) {
                piece.reads.push(by.clone());
            }
        }
        self.fill(gaps, known..bytes.end, |piece| piece.reads.push(by.clone()));
    }

    /// Adds a write, and to `earlier` the units that it must come after. A unit that comes after this one comes after those, too.
    fn write(&mut self, by: Use, earlier: &mut Vec<usize>) {
        let bytes = self.cut_around(&by.bytes);
        let is_full = |piece: &Piece| piece.writes.len() >= MOST_KEPT || piece.reads.len() > 2 * MOST_KEPT;
        let mut pieces = self.0.range(bytes.clone());
        if is_dense(&by.bytes) || pieces.clone().nth(MOST_KEPT).is_some() || pieces.any(|(_, piece)| is_full(piece)) {
            return self.overwrite(by.unit, bytes, earlier);
        }
        let (mut gaps, mut known) = (Vec::new(), bytes.start);
        for (&start, piece) in self.0.range_mut(bytes.clone()) {
            if known < start {
                gaps.push(known..start);
            }
            known = piece.end;
            piece.note(&by, true, earlier);
            piece.writes.retain(|other| !by.bytes.covers(&other.bytes));
            piece.reads.retain(|other| !by.bytes.covers(&other.bytes));
            piece.writes.push(by.clone());
        }
        self.fill(gaps, known..bytes.end, |piece| piece.writes.push(by.clone()));
    }

    /// Adds a write of all bytes of a range, whose ends are those of pieces.
    fn overwrite(&mut self, unit: usize, bytes: Range<usize>, earlier: &mut Vec<usize>) {
        let by = Use { unit, bytes: dense(bytes.clone()) };
        let overwritten: Vec<usize> = self.0.range(bytes.clone()).map(|(start, _)| *start).collect();
        for piece in overwritten.into_iter().filter_map(|start| self.0.remove(&start)) {
            piece.note(&by, true, earlier);
        }
        let piece = Piece { end: bytes.end, writes: SmallVec::from_iter([by]), reads: Vec::new() };
        self.0.insert(bytes.start, piece);
    }

    /// Makes pieces of bytes that no unit has used so far: the gaps, and the `rest`.
    fn fill(&mut self, mut gaps: Vec<Range<usize>>, rest: Range<usize>, note: impl Fn(&mut Piece)) {
        gaps.push(rest);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            let mut piece = Piece { end: gap.end, ..Piece::default() };
            note(&mut piece);
            self.0.insert(gap.start, piece);
        }
    }

    /// Cuts the pieces at the first byte of a use, and behind its last. Returns the bytes in between.
    fn cut_around(&mut self, bytes: &Footprint) -> Range<usize> {
        let bytes = bytes.span();
        self.cut(bytes.start);
        self.cut(bytes.end);
        bytes
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

#[cfg(test)]
#[path = "units_tests.rs"]
mod tests;

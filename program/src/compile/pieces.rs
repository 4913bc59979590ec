//! Which units have used the bytes of a value, where views divide it.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;
use streamvm_ep::Footprint;

use crate::compile::extents::{dense, is_dense};

/// How many pieces a view with gaps, or a read, keeps apart, and how many uses a piece has by views with gaps. Beyond that a use counts as a write of all
/// bytes from its first to its last: a unit that uses these bytes later is ordered after this one, and so also after everything before it.
const MOST_KEPT: usize = 64;

/// A use of bytes by a unit.
#[derive(Clone)]
pub(super) struct Use {
    pub(super) unit: usize,
    pub(super) bytes: Footprint,
}

/// The bytes of a value in pieces, by their first bytes: views cut them where they begin and end. Within a piece, uses by views with gaps are compared
/// with each other exactly.
#[derive(Default)]
pub(super) struct Pieces(BTreeMap<usize, Piece>);

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
    pub(super) fn read(&mut self, by: Use, earlier: &mut Vec<usize>) {
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
    pub(super) fn write(&mut self, by: Use, earlier: &mut Vec<usize>) {
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

    /// Cuts the pieces at the first byte of a use, and after its last. Returns the bytes in between.
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

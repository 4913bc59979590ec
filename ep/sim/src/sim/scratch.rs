//! Scratch copies of operands: the accesses of code are checked before its results reach memory.
//!
//! Operands that overlap share one piece of scratch. It covers the span from the first byte of any of them to the last, with the same
//! alignment, between two bands. A byte that some operand declares to be read holds the contents of memory. Every other byte holds
//! poison: the contents of operands that are only written, the gaps of strided views, and the bands. After the run, a byte that no
//! operand declares to be written must be unchanged; the other bytes are stored to memory.
//!
//! Invariant: `buffer` is accessed through the operands of [`Scratch::operands`] while code runs, and through the piece itself only
//! before and after.

use std::ops::Range;

use smallvec::SmallVec;
use streamvm_ep::Operand;

use crate::races::{FindingKind, Touch, coalesce};
use crate::sim::memory::ALIGNMENT;

/// Bytes of poison before and after a piece.
const BAND: usize = 64;

/// The scratch copies of the operands of one call.
#[derive(Debug)]
pub(super) struct Scratch<'a> {
    originals: &'a [Operand<'a>],
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    /// The addresses that it stands for, without the bands.
    stands_for: Range<usize>,
    /// The contents before the run, bands included.
    image: Vec<u8>,
    /// The parts of the image that some operand declares to read.
    read: Runs,
    /// The parts that some operand declares to write: sorted, with gaps between them.
    written: Runs,
    /// The buffer that contains the copy on which code works.
    buffer: Vec<u8>,
    /// The offset of the copy in the buffer.
    at: usize,
}

type Runs = SmallVec<[Range<usize>; 1]>;

/// A byte that was not accessed as declared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) kind: FindingKind,
    /// The address that the scratch byte stands for.
    pub(super) address: usize,
}

impl<'a> Scratch<'a> {
    /// Copies `originals` as they are now, with `poison` for bytes that are not declared to be read.
    ///
    /// # Safety
    ///
    /// * The guarantees of [`Operand::new`] hold for the originals during this call.
    pub(super) unsafe fn load(originals: &'a [Operand<'a>], poison: u8) -> Scratch<'a> {
        let touches: Vec<Touch> = originals.iter().map(|operand| Touch::of(operand, None)).collect();
        let mut spans: Vec<Range<usize>> = touches.iter().filter_map(span).collect();
        spans.sort_unstable_by_key(|span| span.start);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut hull: Option<Range<usize>> = None;
        for span in spans {
            match &mut hull {
                Some(hull) if span.start < hull.end => hull.end = hull.end.max(span.end),
                _ => pieces.extend(hull.replace(span).map(|hull| Piece::new(hull, poison))),
            }
        }
        pieces.extend(hull.map(|hull| Piece::new(hull, poison)));
        for (original, touch) in originals.iter().zip(&touches) {
            let Some(piece) = span(touch).and_then(|span| find(&mut pieces, span.start)) else { continue };
            for run in touch.runs() {
                let inside = piece.place(run);
                if touch.access().reads() {
                    let source = at_address(original, run.start);
                    // SAFETY: the run is within the operand, whose bytes the caller guarantees to be readable. The image has room for it,
                    // and it is an allocation of its own.
                    unsafe { source.copy_to_nonoverlapping(piece.image[inside.clone()].as_mut_ptr(), run.len()) };
                    piece.read.push(inside.clone());
                }
                if touch.access().writes() {
                    piece.written.push(inside);
                }
            }
        }
        for piece in &mut pieces {
            piece.reset();
        }
        Scratch { originals, pieces }
    }

    /// The same copies as they were loaded, but with another poison.
    pub(super) fn again(&self, poison: u8) -> Scratch<'a> {
        let pieces = self.pieces.iter().map(|piece| piece.again(poison)).collect();
        Scratch { originals: self.originals, pieces }
    }

    /// Operands over the scratch, one per original, for one call.
    pub(super) fn operands(&mut self) -> Vec<Operand<'_>> {
        let pieces = &mut self.pieces;
        let operand = |original: &Operand<'_>| {
            let address = original.ptr().addr();
            let piece = find(pieces, address).filter(|_| original.layout().elements() > 0);
            // SAFETY: a view without elements, the only one without a piece, accesses no memory.
            let Some(piece) = piece else { return unsafe { original.duplicate() } };
            let first = piece.start().wrapping_add(piece.place(&(address..address)).start);
            let base = first.wrapping_sub(original.layout().offset() * original.dtype().size());
            // SAFETY: the piece holds the whole span of the original at the same offsets, initialised. As long as these operands live, they
            // borrow the scratch, so nothing else uses it.
            unsafe { Operand::new(base, original.dtype(), *original.layout(), original.access()) }
        };
        self.originals.iter().map(operand).collect()
    }

    /// The first byte of each kind that was changed without being declared as written.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut found: Vec<Violation> = Vec::new();
        for piece in &self.pieces {
            let now = piece.copy();
            for part in piece.not_written() {
                if now[part.clone()] == piece.image[part.clone()] {
                    continue;
                }
                for index in part.filter(|&index| now[index] != piece.image[index]) {
                    let is_read = piece.read.iter().any(|run| run.contains(&index));
                    let kind = if is_read { FindingKind::UndeclaredWrite } else { FindingKind::OutOfBounds };
                    if found.iter().all(|violation| violation.kind != kind) {
                        found.push(Violation { kind, address: piece.address(index) });
                    }
                }
            }
        }
        found
    }

    /// The first byte declared as written that differs after a second run over another poison.
    pub(super) fn difference(&self, second: &Scratch<'_>) -> Option<Violation> {
        self.pieces.iter().zip(&second.pieces).find_map(|(piece, second)| {
            let (first, second) = (piece.copy(), second.copy());
            let part = piece.written.iter().find(|part| first[(*part).clone()] != second[(*part).clone()])?;
            let index = part.clone().find(|&index| first[index] != second[index])?;
            Some(Violation { kind: FindingKind::UndeclaredRead, address: piece.address(index) })
        })
    }

    /// Stores the bytes that are declared as written.
    ///
    /// # Safety
    ///
    /// * The guarantees of [`Operand::new`] hold for the originals during this call.
    pub(super) unsafe fn store(&mut self) {
        for original in self.originals.iter().filter(|original| original.access().writes()) {
            for run in Touch::of(original, None).runs() {
                let Some(piece) = find(&mut self.pieces, run.start) else { continue };
                let inside = piece.place(run);
                let target = at_address(original, run.start);
                // SAFETY: the run is within the operand, whose bytes the caller guarantees to be writable. The piece holds as many bytes,
                // in an allocation of its own.
                unsafe { target.copy_from_nonoverlapping(piece.copy()[inside].as_ptr(), run.len()) };
            }
        }
    }
}

impl Piece {
    fn new(stands_for: Range<usize>, poison: u8) -> Piece {
        let length = stands_for.len() + 2 * BAND;
        let (read, written) = (Runs::new(), Runs::new());
        Piece { stands_for, image: vec![poison; length], read, written, buffer: Vec::new(), at: 0 }
    }

    fn again(&self, poison: u8) -> Piece {
        let mut piece = Piece::new(self.stands_for.clone(), poison);
        for run in &self.read {
            piece.image[run.clone()].copy_from_slice(&self.image[run.clone()]);
        }
        (piece.read, piece.written) = (self.read.clone(), self.written.clone());
        piece.reset();
        piece
    }

    /// Makes the copy on which code works, with the alignment of the original.
    fn reset(&mut self) {
        coalesce(&mut self.written);
        self.buffer = vec![0; self.image.len() + ALIGNMENT];
        let first = self.buffer.as_ptr().addr() + BAND;
        self.at = self.stands_for.start.wrapping_sub(first) % ALIGNMENT;
        self.buffer[self.at..][..self.image.len()].copy_from_slice(&self.image);
    }

    /// The parts of the image that no operand declares to write.
    fn not_written(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.written.iter().map(|run| run.end));
        let ends = self.written.iter().map(|run| run.start).chain([self.image.len()]);
        starts.zip(ends).map(|(start, end)| start..end)
    }

    fn copy(&self) -> &[u8] {
        &self.buffer[self.at..][..self.image.len()]
    }

    fn start(&mut self) -> *mut u8 {
        self.buffer.as_mut_ptr().wrapping_add(self.at)
    }

    /// The range in the image of the bytes at these addresses.
    fn place(&self, run: &Range<usize>) -> Range<usize> {
        let start = run.start - self.stands_for.start + BAND;
        start..start + run.len()
    }

    /// The address that byte `index` of the image stands for.
    fn address(&self, index: usize) -> usize {
        (self.stands_for.start + index).wrapping_sub(BAND)
    }
}

/// The range from the first byte of a touch to its last.
fn span(touch: &Touch) -> Option<Range<usize>> {
    Some(touch.runs().first()?.start..touch.runs().last()?.end)
}

/// The piece that stands for the byte at `address`.
fn find(pieces: &mut [Piece], address: usize) -> Option<&mut Piece> {
    pieces.iter_mut().find(|piece| piece.stands_for.contains(&address))
}

/// A pointer to the byte of the operand's memory at `address`.
fn at_address(operand: &Operand, address: usize) -> *mut u8 {
    operand.ptr().wrapping_add(address.wrapping_sub(operand.ptr().addr()))
}

#[cfg(test)]
#[path = "scratch_tests.rs"]
mod tests;

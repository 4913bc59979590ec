//! Memory as pieces: for every byte who wrote it last and who has read it since.
//!
//! An interval map over addresses. Pieces are split where accesses begin and end, and joined again where neighbours say
//! the same. It knows nothing of lives except as a label: order goes by bytes, so a race across two lives of the same
//! memory is a race like any other.

use std::collections::BTreeMap;

use crate::graph::NONE;

/// An access that is remembered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) node: u32,
    pub(crate) life: u32,
}

/// Bytes with the same past.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Who wrote last; its node is [`NONE`] if nobody has.
    pub(crate) write: Access,
    /// Who has read since, at most one for each chain.
    pub(crate) reads: Vec<Access>,
}

impl Default for Piece {
    fn default() -> Piece {
        Piece { write: Access { node: NONE, life: NONE }, reads: Vec::new() }
    }
}

#[derive(Debug)]
struct Held {
    end: u64,
    piece: Piece,
}

#[derive(Debug, Default)]
pub(crate) struct Pieces {
    by_start: BTreeMap<u64, Held>,
    scratch: Vec<(u64, u64)>,
}

impl Pieces {
    /// Calls `act` with start, end and past of each piece of the range, which it may change.
    pub(crate) fn touch(&mut self, start: u64, end: u64, mut act: impl FnMut(u64, u64, &mut Piece)) {
        if let Some(held) = self.by_start.get_mut(&start)
            && held.end == end
        {
            act(start, end, &mut held.piece);
            return;
        }
        self.split(start);
        self.split(end);
        self.fill_gaps(start, end);
        for (from, held) in self.by_start.range_mut(start..end) {
            act(*from, held.end, &mut held.piece);
        }
        self.join(start, end);
    }

    /// Calls `act` with each piece of the range and forgets it.
    pub(crate) fn forget(&mut self, start: u64, end: u64, mut act: impl FnMut(u64, u64, &Piece)) {
        self.split(start);
        self.split(end);
        while let Some((&from, held)) = self.by_start.range(start..end).next() {
            act(from, held.end, &held.piece);
            self.by_start.remove(&from);
        }
    }

    /// Makes sure that no piece reaches over `at`.
    fn split(&mut self, at: u64) {
        let Some((&from, held)) = self.by_start.range_mut(..at).next_back() else { return };
        if held.end > at && from < at {
            let rest = Held { end: held.end, piece: held.piece.clone() };
            held.end = at;
            self.by_start.insert(at, rest);
        }
    }

    fn fill_gaps(&mut self, start: u64, end: u64) {
        self.scratch.clear();
        let mut next = start;
        for (from, held) in self.by_start.range(start..end) {
            if *from > next {
                self.scratch.push((next, *from));
            }
            next = held.end;
        }
        if next < end {
            self.scratch.push((next, end));
        }
        for (from, end) in self.scratch.drain(..) {
            self.by_start.insert(from, Held { end, piece: Piece::default() });
        }
    }

    fn join(&mut self, start: u64, end: u64) {
        self.scratch.clear();
        self.scratch.extend(self.by_start.range(start..end).map(|(from, held)| (*from, held.end)));
        let mut first = start;
        for index in 1..self.scratch.len() {
            let (from, end) = self.scratch[index];
            if self.by_start[&first].piece == self.by_start[&from].piece {
                self.by_start.remove(&from);
                if let Some(held) = self.by_start.get_mut(&first) {
                    held.end = end;
                }
            } else {
                first = from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(pieces: &mut Pieces, start: u64, end: u64, node: u32) {
        pieces.touch(start, end, |_, _, piece| {
            piece.write = Access { node, life: 0 };
            piece.reads.clear();
        });
    }

    fn seen(pieces: &mut Pieces, start: u64, end: u64) -> Vec<(u64, u64, u32)> {
        let mut seen = Vec::new();
        pieces.touch(start, end, |start, end, piece| seen.push((start, end, piece.write.node)));
        seen
    }

    #[test]
    fn pieces_split_at_accesses_and_join_when_they_say_the_same() {
        let mut pieces = Pieces::default();
        write(&mut pieces, 10, 20, 1);
        write(&mut pieces, 14, 16, 2);
        assert_eq!(seen(&mut pieces, 8, 22), [(8, 10, NONE), (10, 14, 1), (14, 16, 2), (16, 20, 1), (20, 22, NONE)]);
        write(&mut pieces, 12, 18, 3);
        assert_eq!(seen(&mut pieces, 10, 20), [(10, 12, 1), (12, 18, 3), (18, 20, 1)]);
        assert_eq!(pieces.by_start.len(), 5);
        write(&mut pieces, 8, 22, 4);
        assert_eq!(seen(&mut pieces, 8, 22), [(8, 22, 4)]);
        assert_eq!(pieces.by_start.len(), 1);
    }

    #[test]
    fn what_is_forgotten_was_never_there() {
        let mut pieces = Pieces::default();
        write(&mut pieces, 10, 20, 1);
        let mut told = Vec::new();
        pieces.forget(12, 30, |start, end, piece| told.push((start, end, piece.write.node)));
        assert_eq!(told, [(12, 20, 1)]);
        assert_eq!(seen(&mut pieces, 10, 30), [(10, 12, 1), (12, 30, NONE)]);
    }
}

//! Memory as pieces: for every byte, the last write and the reads since.
//!
//! The pieces are an interval map over addresses. A piece is split where an access begins or ends, and neighbours with equal
//! content are joined. A life is only a label of an access: order is checked by bytes, so a race across two lives of the same
//! memory is a race like any other.
//!
//! Each piece has its own list of readers, so many readers of many pieces take memory and time as the product of both. Both are
//! counted ([`Effort`]) and bounded.

use std::collections::BTreeMap;

use crate::graph::NONE;

/// One access in a piece.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) node: u32,
    pub(crate) life: u32,
}

/// A range of bytes with the same past accesses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The last write; its node is [`NONE`] if there was none.
    pub(crate) write: Access,
    /// The reads since the last write, at most one for each chain.
    pub(crate) reads: Vec<Access>,
    /// Accesses since the last write that may or may not have touched these bytes; mostly there are none.
    pub(crate) perhaps: Option<Box<Perhaps>>,
}

/// Accesses that are known only by their hull, the range from their first to their last byte. Each of them may or may not have
/// touched this piece, so it replaces no exact access.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Perhaps {
    pub(crate) writes: Vec<Access>,
    pub(crate) reads: Vec<Access>,
}

impl Default for Piece {
    fn default() -> Piece {
        Piece { write: Access { node: NONE, life: NONE }, reads: Vec::new(), perhaps: None }
    }
}

impl Piece {
    /// The number of accesses besides the last write.
    fn remembered(&self) -> usize {
        self.reads.len() + self.perhaps().count()
    }

    /// The accesses that may or may not have touched these bytes.
    fn perhaps(&self) -> impl Iterator<Item = &Access> {
        self.perhaps.iter().flat_map(|perhaps| perhaps.writes.iter().chain(&perhaps.reads))
    }

    /// Every access, including the last write.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Access> {
        self.reads.iter().chain([&self.write]).chain(self.perhaps())
    }
}

/// The most accesses besides last writes, over all pieces: 256 MiB, and at most 100 bytes more for each piece that a hull touches.
/// That allows two million pieces that each of 16 streams reads.
const MOST_READERS: usize = 1 << 25;

/// The most accesses that are visited: a few seconds. 100,000 instructions on 16 streams visit a few million.
const MOST_LOOKS: u64 = 1 << 30;

/// The memory and time that the lists of accesses have taken so far.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    /// The number of accesses in all pieces, without last writes.
    readers: usize,
    /// The number of visits to such accesses.
    looks: u64,
}

impl Effort {
    /// Whether the limits are exceeded.
    pub(crate) fn is_too_much(&self) -> bool {
        self.readers > MOST_READERS || self.looks > MOST_LOOKS
    }

    /// Calls `act` on a piece, and counts its accesses before and after.
    pub(crate) fn of(&mut self, piece: &mut Piece, act: impl FnOnce(&mut Piece)) {
        let before = piece.remembered();
        act(piece);
        let after = piece.remembered();
        self.readers = self.readers + after - before;
        self.looks += (1 + before + after) as u64;
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
    pub(crate) effort: Effort,
}

impl Pieces {
    /// Calls `act` with start, end and content of each piece of the range; `act` may change the content.
    pub(crate) fn touch(&mut self, start: u64, end: u64, mut act: impl FnMut(u64, u64, &mut Piece)) {
        if let Some(held) = self.by_start.get_mut(&start)
            && held.end == end
        {
            self.effort.of(&mut held.piece, |piece| act(start, end, piece));
            return;
        }
        self.split(start);
        self.split(end);
        self.fill_gaps(start, end);
        for (from, held) in self.by_start.range_mut(start..end) {
            self.effort.of(&mut held.piece, |piece| act(*from, held.end, piece));
        }
        self.join(start, end);
    }

    /// Calls `act` with each piece of the range, and removes the piece.
    pub(crate) fn forget(&mut self, start: u64, end: u64, mut act: impl FnMut(u64, u64, &Piece)) {
        self.split(start);
        self.split(end);
        while let Some((&from, held)) = self.by_start.range_mut(start..end).next() {
            self.effort.of(&mut held.piece, |piece| {
                act(from, held.end, piece);
                (piece.reads, piece.perhaps) = (Vec::new(), None);
            });
            self.by_start.remove(&from);
        }
    }

    /// Splits the piece that contains `at` in its interior, if there is one.
    fn split(&mut self, at: u64) {
        let Some((&from, held)) = self.by_start.range_mut(..at).next_back() else { return };
        if held.end > at && from < at {
            let rest = Held { end: held.end, piece: held.piece.clone() };
            held.end = at;
            self.effort.readers += rest.piece.remembered();
            self.effort.looks += rest.piece.remembered() as u64;
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
                self.effort.readers -= self.by_start.remove(&from).map_or(0, |held| held.piece.remembered());
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
    fn readers_are_counted_however_pieces_come_and_go() {
        let mut pieces = Pieces::default();
        let mut state = 1_u64;
        let mut random = move |below: u64| {
            // Xorshift (Marsaglia 2003); any pseudorandom sequence would do.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for node in 0..2000 {
            let start = random(60);
            let end = start + 1 + random(20);
            match random(8) {
                0 => pieces.forget(start, end, |_, _, _| {}),
                1 => write(&mut pieces, start, end, node),
                2 => pieces.touch(start, end, |_, _, piece| {
                    piece.perhaps.get_or_insert_default().writes.push(Access { node, life: 0 });
                }),
                _ => pieces.touch(start, end, |_, _, piece| piece.reads.push(Access { node, life: 0 })),
            }
            let held: usize = pieces.by_start.values().map(|held| held.piece.remembered()).sum();
            assert_eq!(pieces.effort.readers, held, "at {node}");
        }
        assert!(pieces.effort.readers > 0 && pieces.effort.looks > pieces.effort.readers as u64);
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

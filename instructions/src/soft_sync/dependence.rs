//! Dependences: who last wrote a resource, and who has read it since.
//!
//! Reads run side by side, so a dependence keeps one point per reading stream; a write waits for all of them and
//! replaces them. A resource that lives in reused memory starts with the accesses of the memory's former lives as
//! "reads since": its first access, whatever it is, is a write as far as that memory is concerned.
//!
//! A storage that is used in parts has a list of accesses instead: see [`parts`](super::parts).
//!
//! On an unordered stream no read stands for another, so each is kept; those that were seen to have passed go when they would
//! need more room.

use std::slice;

use smallvec::SmallVec;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::allocator::AccessSet;
use streamvm_stream::{Point, StreamId};

use super::Observed;
use super::parts::Parts;

/// No point: a number that no instruction has.
const NONE: Point = Point { stream: StreamId(0), seq: 0 };

/// The record of one resource.
#[derive(Clone, Debug)]
pub struct Dependence {
    /// The last write; number 0 before the first.
    write: Point,
    /// The reads since. Where there is an `only` stream, and the last use is a read, that stands for all of them, and what is here is
    /// of no account: see [`Dependence::reads`].
    reads: SmallVec<[Point; 3]>,
    /// `reads` holds former lives of the memory, which even a read must wait for.
    reused: bool,
    last_use: Point,
    /// The ordered stream of all that an access may need, if it is one.
    only: StreamId,
    /// Which other stream's reads are known to come after the last write.
    behind: StreamId,
    /// The record is split: `parts` has all of it, and the fields above say that nothing was ever written or read.
    split: bool,
    /// The list of a record that is split or was; then it is empty, and keeps its room.
    parts: Option<Box<Parts>>,
}

/// No stream.
const NOBODY: StreamId = StreamId(u32::MAX);

/// All streams.
const EVERYBODY: StreamId = StreamId(u32::MAX - 1);

impl Default for Dependence {
    fn default() -> Dependence {
        Dependence {
            write: NONE,
            reads: SmallVec::new(),
            reused: false,
            last_use: NONE,
            only: NOBODY,
            behind: NOBODY,
            split: false,
            parts: None,
        }
    }
}

fn some(point: Point) -> Option<Point> {
    (point.seq > 0).then_some(point)
}

impl Dependence {
    /// A resource whose memory was used before: `accesses` are what is still pending on it.
    pub fn after(accesses: &AccessSet) -> Dependence {
        let mut dependence = Dependence { reused: !accesses.is_empty(), ..Dependence::default() };
        accesses.iter().for_each(|read| dependence.reads.push(read));
        if let [read] = dependence.reads.as_slice()
            && !read.stream.is_unordered()
        {
            dependence.only = read.stream;
        }
        dependence
    }

    /// Starts anew, as [`Dependence::after`] what it was. Returns the ordered stream of all that it was, or `None`, and changes
    /// nothing, if there is no such stream.
    #[inline]
    pub(super) fn renew(&mut self) -> Option<StreamId> {
        if self.only == NOBODY {
            return if self.split { self.renew_split() } else { None };
        }
        // One entry for a stream, and the read came after the write.
        let last = self.reads().first().copied().unwrap_or(self.write);
        self.reads.clear();
        self.reads.push(last);
        (self.write, self.last_use, self.reused, self.behind) = (NONE, NONE, true, NOBODY);
        Some(self.only)
    }

    /// [`Dependence::renew`] of a split record.
    #[inline(never)]
    fn renew_split(&mut self) -> Option<StreamId> {
        let parts = self.parts.as_mut()?;
        let last = parts.points().max_by_key(|point| point.seq)?;
        if last.stream.is_unordered() || parts.points().any(|point| point.stream != last.stream) {
            return None;
        }
        parts.clear();
        self.reads.push(last);
        (self.last_use, self.split, self.reused, self.only) = (NONE, false, true, last.stream);
        Some(last.stream)
    }

    /// The reads since the last write, and what is left of former lives.
    #[inline]
    fn reads(&self) -> &[Point] {
        let by_last_use = self.only != NOBODY && self.last_use.seq > 0 && self.last_use != self.write;
        if by_last_use { slice::from_ref(&self.last_use) } else { &self.reads }
    }

    /// Makes `reads` whole, as there will be uses on several streams.
    #[inline]
    fn gather_reads(&mut self) {
        if self.only != NOBODY
            && let [read] = *self.reads()
        {
            self.reads.clear();
            self.reads.push(read);
        }
    }

    /// The last write that was submitted, of a record that is not split.
    #[inline]
    pub(super) fn last_write(&self) -> Option<Point> {
        some(self.write)
    }

    /// The last writes that were submitted of the bytes in `part`, of the whole storage if it is `None`. Mostly one; several where parts
    /// were written. One that was seen to have passed without a failure may be left out.
    pub fn last_writes(&self, part: Option<&Footprint>) -> SmallVec<[Point; 1]> {
        match &self.parts {
            Some(parts) if self.split => match part {
                Some(part) => parts.writes(part).collect(),
                None => parts.writes(&Footprint::all()).collect(),
            },
            _ => some(self.write).into_iter().collect(),
        }
    }

    /// Everything that memory must wait for before it is used again: the last write and the reads since.
    pub fn accesses(&self) -> AccessSet {
        let mut set = AccessSet::new();
        if let Some(parts) = self.parts.as_ref().filter(|_| self.split) {
            parts.points().for_each(|point| set.add(point));
            return set;
        }
        // Mostly one stream has it all: the read came after the write, and stands for both.
        if let [read] = self.reads()
            && read.stream == self.write.stream
        {
            set.add(*read);
            return set;
        }
        for point in some(self.write).into_iter().chain(self.reads().iter().copied()) {
            set.add(point);
        }
        set
    }

    /// Whether every point that an access may need is of `stream`: then it needs nothing, as a stream is ordered.
    #[inline]
    pub(super) fn is_of(&self, stream: StreamId) -> bool {
        self.only == stream
    }

    /// Whether a read on `stream` is known to need nothing: it was found before, and is forgotten with the next write. What is written
    /// once and read for ever, as the weights of a model are, is looked at once.
    #[inline]
    pub(super) fn is_behind(&self, stream: StreamId) -> bool {
        // What is reused was not written yet, and an unordered stream is not behind itself.
        let own = self.write.stream == stream && self.write.seq > 0 && !stream.is_unordered();
        own || self.behind == stream || self.behind == EVERYBODY
    }

    /// Notes that reads on `stream` come after the last write.
    pub(super) fn note_behind(&mut self, stream: StreamId) {
        self.behind = stream;
    }

    /// Notes that the last write has passed: all reads come after it.
    pub(super) fn note_passed(&mut self) {
        self.behind = EVERYBODY;
    }

    /// The one point that a read must come after, if there is no more than one.
    #[inline]
    pub(super) fn only_need_of_read(&self) -> Option<Point> {
        if self.reused { None } else { some(self.write) }
    }

    /// Calls `need` for each point that a read must come after; a point of number 0 is none.
    pub(super) fn needs_of_read(&self, mut need: impl FnMut(Point)) {
        if self.reused {
            self.reads().iter().copied().for_each(&mut need);
        }
        need(self.write);
    }

    /// Calls `need` for each point that a write must come after; a point of number 0 is none.
    #[inline]
    pub(super) fn needs_of_write(&self, mut need: impl FnMut(Point)) {
        if self.reads().is_empty() {
            need(self.write);
        } else {
            // Each read came after the last write, so the reads alone are enough.
            self.reads().iter().copied().for_each(need);
        }
    }

    /// The coarser rule: the last use, whatever it was.
    pub(super) fn last_use(&self) -> Option<Point> {
        some(self.last_use)
    }

    #[inline]
    pub(super) fn note_read(&mut self, at: Point) {
        if self.only == at.stream {
            self.last_use = at;
        } else {
            self.note_read_beside(at);
        }
    }

    #[inline(never)]
    fn note_read_beside(&mut self, at: Point) {
        self.gather_reads();
        self.last_use = at;
        match self.reads.iter_mut().find(|read| read.stream == at.stream) {
            Some(read) => read.seq = at.seq,
            None => self.reads.push(at),
        }
        let alone = self.write.seq == 0 && self.reads.len() == 1;
        self.only = if alone { at.stream } else { NOBODY };
    }

    /// A read on an unordered stream: the others say nothing about it, so it is kept beside them, until it was seen to have
    /// passed.
    #[inline(never)]
    pub(super) fn note_unordered_read(&mut self, at: Point, observed: &mut impl Observed) {
        self.gather_reads();
        self.last_use = at;
        self.only = NOBODY;
        if self.reads.last() == Some(&at) {
            return;
        }
        if self.reads.len() == self.reads.capacity() && !self.reused {
            self.reads.retain(|read| !observed.has_passed(*read));
            // Looked at again only when there are twice as many.
            if self.reads.len() * 2 > self.reads.capacity() {
                self.reads.reserve(self.reads.capacity());
            }
        }
        self.reads.push(at);
    }

    #[inline]
    pub(super) fn note_write(&mut self, at: Point) {
        self.last_use = at;
        self.write = at;
        self.only = if at.stream.is_unordered() { NOBODY } else { at.stream };
        self.behind = NOBODY;
        // Mostly there are none: one by one they are dropped by a loop that cannot be foreseen.
        if !self.reads.is_empty() {
            self.reads.clear();
        }
        self.reused = false;
    }

    /// Whether the storage was used in parts: then [`Dependence::split_record`] has everything.
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        self.split
    }

    /// The list of a split record.
    pub(super) fn split_record(&mut self) -> Option<&mut Parts> {
        self.parts.as_deref_mut().filter(|_| self.split)
    }

    /// Enters a use of a part, or any use of a split record.
    #[inline(never)]
    pub(super) fn note_part(&mut self, at: Point, access: Access, extent: &Footprint, observed: &mut impl Observed) {
        if !self.split {
            self.split();
        }
        self.last_use = at;
        let Some(parts) = &mut self.parts else { return };
        if access.writes() {
            if !parts.note_write(at, extent) {
                parts.clear();
                self.split = false;
                self.note_write(at);
            }
            return;
        }
        if *extent == Footprint::all()
            && let Some(reads) = parts.join(observed)
        {
            parts.clear();
            self.reads = reads;
            self.split = false;
            return if at.stream.is_unordered() { self.note_unordered_read(at, observed) } else { self.note_read(at) };
        }
        parts.note_read(at, extent, observed);
    }

    /// Moves what is known of the whole storage into a list of accesses.
    fn split(&mut self) {
        let mut parts = self.parts.take().unwrap_or_default();
        parts.split(some(self.write), self.reads(), self.reused);
        self.reads.clear();
        (self.write, self.last_use, self.reused) = (NONE, NONE, false);
        (self.only, self.behind, self.split, self.parts) = (NOBODY, NOBODY, true, Some(parts));
    }
}

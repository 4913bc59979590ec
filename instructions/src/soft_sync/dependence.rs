//! Dependences: for each resource, the last write and the reads since.
//!
//! Reads do not wait for each other, so a dependence keeps one point per reading stream. A write waits for all of them and replaces
//! them. A resource in reused memory starts with the accesses of the memory's former allocations as "reads since": its first access,
//! even if it is a read, is ordered like a write of that memory.
//!
//! A storage that is used in parts has a list of accesses instead: see [`parts`](super::parts).
//!
//! On an unordered stream a later read does not imply an earlier one, so every read is kept. When the list would have to grow, the
//! reads that were seen to have passed are removed.

use std::slice;

use smallvec::SmallVec;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::allocator::AccessSet;
use streamvm_stream::{Point, StreamId};

use crate::soft_sync::observed::Observed;
use crate::soft_sync::parts::Parts;

/// No point: no instruction has sequence number 0.
const NONE: Point = Point { stream: StreamId(0), seq: 0 };

/// The dependence record of one resource.
#[derive(Clone, Debug)]
pub struct Dependence {
    /// The last write; number 0 before the first.
    write: Point,
    /// The reads since the last write. If all points are on one ordered stream and the last use is a read, `last_use` replaces
    /// this list, which is then not updated: use [`Dependence::reads`].
    reads: SmallVec<[Point; 3]>,
    /// `reads` holds accesses of former allocations of the memory, which even a read must wait for.
    reused: bool,
    last_use: Point,
    /// The ordered stream of all points that an access may need, if they are all on one ordered stream.
    only: StreamId,
    /// The other stream whose reads are known to come after the last write; [`ALL_STREAMS`] for all streams.
    behind: StreamId,
    /// Whether the record is split: then `parts` has all accesses, and the fields above say that the resource was never written or
    /// read.
    split: bool,
    /// The accesses of a split record. A record that was split before keeps it empty, for its capacity.
    parts: Option<Box<Parts>>,
}

/// No stream.
const NO_STREAM: StreamId = StreamId(u32::MAX);

/// All streams.
const ALL_STREAMS: StreamId = StreamId(u32::MAX - 1);

impl Default for Dependence {
    fn default() -> Dependence {
        Dependence {
            write: NONE,
            reads: SmallVec::new(),
            reused: false,
            last_use: NONE,
            only: NO_STREAM,
            behind: NO_STREAM,
            split: false,
            parts: None,
        }
    }
}

fn some(point: Point) -> Option<Point> {
    (point.seq > 0).then_some(point)
}

impl Dependence {
    /// A dependence for a resource in reused memory: `accesses` are the pending accesses of that memory.
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

    /// Resets the dependence to [`Dependence::after`] its own accesses. Returns the ordered stream of all of these accesses.
    /// Returns `None`, and changes nothing, if they are not all on one ordered stream.
    #[inline]
    pub(super) fn renew(&mut self) -> Option<StreamId> {
        if self.only == NO_STREAM {
            return if self.split { self.renew_split() } else { None };
        }
        // All accesses are on one stream, so its last point implies the others; a read since the last write is later than the
        // write.
        let last = self.reads().first().copied().unwrap_or(self.write);
        self.reads.clear();
        self.reads.push(last);
        (self.write, self.last_use, self.reused, self.behind) = (NONE, NONE, true, NO_STREAM);
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

    /// The reads since the last write, or the accesses of former allocations.
    #[inline]
    fn reads(&self) -> &[Point] {
        let by_last_use = self.only != NO_STREAM && self.last_use.seq > 0 && self.last_use != self.write;
        if by_last_use { slice::from_ref(&self.last_use) } else { &self.reads }
    }

    /// Brings `reads` up to date, before uses of several streams are kept.
    #[inline]
    fn gather_reads(&mut self) {
        if self.only != NO_STREAM
            && let [read] = *self.reads()
        {
            self.reads.clear();
            self.reads.push(read);
        }
    }

    /// The last submitted write, for a record that is not split.
    #[inline]
    pub(super) fn last_write(&self) -> Option<Point> {
        some(self.write)
    }

    /// The last submitted writes of the bytes in `part`, or of the whole storage if it is `None`. Mostly one; several where parts
    /// were written. Writes that were seen to have passed without a failure may be left out.
    pub fn last_writes(&self, part: Option<&Footprint>) -> SmallVec<[Point; 1]> {
        match &self.parts {
            Some(parts) if self.split => match part {
                Some(part) => parts.writes(part).collect(),
                None => parts.writes(&Footprint::all()).collect(),
            },
            _ => some(self.write).into_iter().collect(),
        }
    }

    /// Everything that the memory must wait for before it is used again: the last write and the reads since.
    pub fn accesses(&self) -> AccessSet {
        let mut set = AccessSet::new();
        if let Some(parts) = self.parts.as_ref().filter(|_| self.split) {
            parts.points().for_each(|point| set.add(point));
            return set;
        }
        // In most cases all accesses are on one stream: the read came after the write and implies it.
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

    /// Whether every point that an access may need is on the ordered stream `stream`: then an access there needs nothing.
    #[inline]
    pub(super) fn is_of(&self, stream: StreamId) -> bool {
        self.only == stream
    }

    /// Whether a read on `stream` is known to need nothing. The result is remembered until the next write, so a resource that is
    /// written once and read often, such as the weights of a model, is checked once.
    #[inline]
    pub(super) fn is_after(&self, stream: StreamId) -> bool {
        // Reused memory has no write yet. On an unordered stream, a read does not come after a write of the same stream.
        let own = self.write.stream == stream && self.write.seq > 0 && !stream.is_unordered();
        own || self.behind == stream || self.behind == ALL_STREAMS
    }

    /// Notes that reads on `stream` come after the last write.
    pub(super) fn note_after(&mut self, stream: StreamId) {
        self.behind = stream;
    }

    /// Notes that the last write has passed, so reads on every stream come after it.
    pub(super) fn note_passed(&mut self) {
        self.behind = ALL_STREAMS;
    }

    /// The only point that a read must come after; `None` if there is no such point, or there may be several.
    #[inline]
    pub(super) fn only_need_of_read(&self) -> Option<Point> {
        if self.reused { None } else { some(self.write) }
    }

    /// Calls `need` for each point that a read must come after; a point with number 0 is no point.
    pub(super) fn needs_of_read(&self, mut need: impl FnMut(Point)) {
        if self.reused {
            self.reads().iter().copied().for_each(&mut need);
        }
        need(self.write);
    }

    /// Calls `need` for each point that a write must come after; a point with number 0 is no point.
    #[inline]
    pub(super) fn needs_of_write(&self, mut need: impl FnMut(Point)) {
        if self.reads().is_empty() {
            need(self.write);
        } else {
            // Each read came after the last write, so the reads imply it.
            self.reads().iter().copied().for_each(need);
        }
    }

    /// The last use, whatever its access: the need under
    /// [`SoftSyncMode::LastUsedStream`](super::request::SoftSyncMode::LastUsedStream).
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
        self.only = if alone { at.stream } else { NO_STREAM };
    }

    /// Notes a read on an unordered stream. No other read implies it, so it is kept until it was seen to have passed.
    #[inline(never)]
    pub(super) fn note_unordered_read(&mut self, at: Point, observed: &mut impl Observed) {
        self.gather_reads();
        self.last_use = at;
        self.only = NO_STREAM;
        if self.reads.last() == Some(&at) {
            return;
        }
        if self.reads.len() == self.reads.capacity() && !self.reused {
            self.reads.retain(|read| !observed.has_passed(*read));
            // Doubling the capacity makes the next removal wait until there are twice as many reads.
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
        self.only = if at.stream.is_unordered() { NO_STREAM } else { at.stream };
        self.behind = NO_STREAM;
        // Mostly there are no reads. The check avoids the loop that drops them, whose branches are hard to predict.
        if !self.reads.is_empty() {
            self.reads.clear();
        }
        self.reused = false;
    }

    /// Whether the storage was used in parts: then [`Dependence::split_record`] has all accesses.
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        self.split
    }

    /// The accesses of a split record; `None` if the record is not split.
    pub(super) fn split_record(&mut self) -> Option<&mut Parts> {
        self.parts.as_deref_mut().filter(|_| self.split)
    }

    /// Notes a use of a part, or any use of a split record.
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

    /// Moves the accesses of the whole storage into a list of accesses.
    fn split(&mut self) {
        let mut parts = self.parts.take().unwrap_or_default();
        parts.split(some(self.write), self.reads(), self.reused);
        self.reads.clear();
        (self.write, self.last_use, self.reused) = (NONE, NONE, false);
        (self.only, self.behind, self.split, self.parts) = (NO_STREAM, NO_STREAM, true, Some(parts));
    }
}

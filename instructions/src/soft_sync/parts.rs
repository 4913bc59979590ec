//! Parts: the record of a storage that is used in parts.
//!
//! A [`Dependence`](super::Dependence) keeps one last write for its whole storage. The first instruction that uses a part, a view
//! that does not cover the storage, *splits* the record: from then on it is a list of accesses, each with its
//! [`Footprint`]. An access needs the listed accesses whose footprints meet its own, so two streams that write disjoint rows or
//! columns of one tensor wait for nothing of each other. A write of the whole storage *joins* the record again, and so does
//! a read of the whole storage once every write in the list has passed without a failure.
//!
//! An access leaves the list when a later write covers it, or a later read on the same ordered stream. One that is overwritten
//! in part stays as it was: an access that overlaps the overwritten part needs both writes. That costs no wait on an
//! ordered stream, as the newer write came after the older one and the clocks drop what another need implies.
//!
//! **The list is bounded.** At most [`MOST_PARTS`] writes are kept. A write of a part that finds no room counts as a use of the
//! whole storage: it needs everything in the list, carries on the poison of all of it, and takes its place. A read on an ordered stream that
//! finds no room among the reads counts as a read of the whole. Reads on unordered streams are kept one by one, as each is to be
//! waited for; a write that finds more than twice [`MOST_PARTS`] counts as one of the whole. So the record gets coarser, never wrong. Before that,
//! entries go that order nothing any more: reads that were seen to pass, writes that were seen to pass without a failure.
//!
//! Invariant: while a record is split, the fields of the whole record say that nothing was ever written or read.

use smallvec::SmallVec;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::Point;

use super::Observed;

/// The most writes of parts that a storage keeps apart, and the most reads on ordered streams. Each access looks at all of them: about 5 ns an entry,
/// so at most about what handing an instruction to another core costs.
pub const MOST_PARTS: usize = 64;

/// Reads are kept without a look at what has passed while there are no more than so many.
const FEW: usize = 8;

/// One access to a part.
#[derive(Clone, Debug)]
struct Part {
    extent: Footprint,
    point: Point,
}

/// The accesses of a storage that is used in parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// Writes of this storage that are not covered by later ones.
    writes: Vec<Part>,
    /// Accesses of former lives of the memory. They order as writes of the whole do, and have no value that could have failed.
    former: Vec<Point>,
    /// Reads that no later write and no later read on their stream covers.
    reads: Vec<Part>,
    /// So many reads are kept before the next look at what has passed.
    reads_before_prune: usize,
    /// The instruction whose write of a part found no room: it counts as a use of the whole storage.
    whole_for: Option<Point>,
}

impl Parts {
    /// Forgets everything and keeps the room.
    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.former.clear();
        self.reads.clear();
        (self.reads_before_prune, self.whole_for) = (FEW, None);
    }

    /// Takes over what a record of the whole storage knows.
    pub(super) fn split(&mut self, write: Option<Point>, reads: &[Point], reused: bool) {
        self.clear();
        let whole = |point| Part { extent: Footprint::all(), point };
        self.writes.extend(write.map(whole));
        if reused {
            self.former.extend_from_slice(reads);
        } else {
            self.reads.extend(reads.iter().copied().map(whole));
        }
    }

    /// The extent by which the instruction `at` is ordered: its own, or that of the whole storage, if it writes a part and finds
    /// no room. To be asked for every use of an instruction before any of them is noted.
    pub(super) fn make_room(
        &mut self,
        at: Point,
        access: Access,
        extent: &Footprint,
        observed: &mut impl Observed,
    ) -> Footprint {
        if access.writes() && self.writes.len() >= MOST_PARTS {
            self.forget_writes_that_are_over(observed);
            if self.writes.len() >= MOST_PARTS {
                return self.count_as_whole(at);
            }
        }
        // Reads on streams without order are kept one by one. Each write of a part looks at all of them, so where there are many, one
        // write of the whole takes their place.
        if access.writes() && self.reads.len() > 2 * MOST_PARTS {
            self.forget_reads_that_have_passed(observed);
            if self.reads.len() > 2 * MOST_PARTS {
                return self.count_as_whole(at);
            }
        }
        extent.clone()
    }

    fn count_as_whole(&mut self, at: Point) -> Footprint {
        self.whole_for = Some(at);
        Footprint::all()
    }

    /// The writes that an access of `extent` must come after. A reader looks at these points for poison.
    pub(super) fn writes(&self, extent: &Footprint) -> impl Iterator<Item = Point> {
        meeting(&self.writes, extent)
    }

    /// The accesses of former lives: every access must come after all of them.
    pub(super) fn former(&self) -> &[Point] {
        &self.former
    }

    /// The reads that a write of `extent` must come after.
    pub(super) fn reads(&self, extent: &Footprint) -> impl Iterator<Item = Point> {
        meeting(&self.reads, extent)
    }

    /// Every point in the list.
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        let parts = self.writes.iter().chain(&self.reads).map(|part| part.point);
        parts.chain(self.former.iter().copied())
    }

    /// Enters a read.
    pub(super) fn note_read(&mut self, at: Point, extent: &Footprint, observed: &mut impl Observed) {
        if extent.is_empty() {
            return;
        }
        let whole = Footprint::all();
        let mut extent = extent;
        let ordered = !at.stream.is_unordered();
        let own = |part: &Part| part.point.stream == at.stream;
        if ordered {
            // A later read on the same ordered stream comes after an earlier one, so it stands for it where it covers it.
            self.reads.retain(|part| !(own(part) && extent.covers(&part.extent)));
        } else if self.reads.last().is_some_and(|last| last.point == at && last.extent == *extent) {
            return;
        }
        if self.reads.len() >= self.reads_before_prune || (ordered && self.reads.len() >= MOST_PARTS) {
            self.forget_reads_that_have_passed(observed);
        }
        if ordered && self.reads.len() >= MOST_PARTS {
            self.reads.retain(|part| !own(part));
            extent = &whole;
        }
        self.reads.push(Part { extent: extent.clone(), point: at });
    }

    /// Enters a write of a part, and returns true; or false, with nothing changed, where it counts as one of the whole storage.
    #[must_use]
    pub(super) fn note_write(&mut self, at: Point, extent: &Footprint) -> bool {
        if self.whole_for == Some(at) || *extent == Footprint::all() {
            return false;
        }
        if !extent.is_empty() {
            self.writes.retain(|part| !extent.covers(&part.extent));
            self.reads.retain(|part| !extent.covers(&part.extent));
            self.writes.push(Part { extent: extent.clone(), point: at });
        }
        true
    }

    /// Tries to come to a record of the whole storage: its reads, if all writes were seen to have passed without a failure and no read
    /// of a part is left.
    pub(super) fn join(&mut self, observed: &mut impl Observed) -> Option<SmallVec<[Point; 3]>> {
        self.forget_writes_that_are_over(observed);
        // Each read of the whole tries this: many reads are looked at only once there are twice as many.
        if !self.writes.is_empty() || (self.reads.len() > MOST_PARTS && self.reads.len() < self.reads_before_prune) {
            return None;
        }
        self.forget_reads_that_have_passed(observed);
        self.former.retain(|point| !observed.has_passed(*point));
        let whole = self.former.is_empty() && self.reads.iter().all(|part| part.extent == Footprint::all());
        whole.then(|| self.reads.iter().map(|part| part.point).collect())
    }

    fn forget_writes_that_are_over(&mut self, observed: &mut impl Observed) {
        self.writes.retain(|part| !observed.is_over(part.point));
    }

    fn forget_reads_that_have_passed(&mut self, observed: &mut impl Observed) {
        self.reads.retain(|part| !observed.has_passed(part.point));
        self.reads_before_prune = (2 * self.reads.len()).max(FEW);
    }
}

fn meeting(parts: &[Part], extent: &Footprint) -> impl Iterator<Item = Point> {
    parts.iter().filter(|part| extent.overlaps(&part.extent)).map(|part| part.point)
}

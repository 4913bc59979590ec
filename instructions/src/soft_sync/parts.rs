//! Parts: the record of a storage that is used in parts.
//!
//! A [`Dependence`](super::dependence::Dependence) keeps one last write for its whole storage. The first instruction that uses a
//! part, that is, a view that does not cover the storage, *splits* the record: from then on it is a list of accesses, each with its
//! [`Footprint`]. An access needs the listed accesses whose footprints overlap its own, so two streams that write disjoint rows or
//! columns of one tensor do not wait for each other. A write of the whole storage *joins* the record again. So does a read of the
//! whole storage, once every write in the list has passed without a failure.
//!
//! An access leaves the list when a later write covers it, or a later read on the same ordered stream. An access that is
//! overwritten in part stays unchanged, so an access that overlaps the overwritten part needs both writes. That costs no wait on an
//! ordered stream, as the newer write came after the older one, and the clocks drop a need that another need implies.
//!
//! **The list is bounded**; when it is full, the record gets coarser, never wrong.
//! * At most [`MOST_PARTS`] writes are kept. When the list is full, a write of a part counts as a use of the whole storage: it
//!   needs every access in the list, inherits the poison of all of them, and replaces them.
//! * A read on an ordered stream that finds [`MOST_PARTS`] reads counts as a read of the whole, and replaces the reads of its
//!   stream.
//! * Reads on unordered streams are kept one by one, as each must be waited for. A write that finds more than twice [`MOST_PARTS`]
//!   reads counts as a write of the whole.
//! * Before any of this, entries that order nothing are removed: reads that were seen to have passed, and writes that were seen to
//!   have passed without a failure.
//!
//! Invariant: while a record is split, the fields of the whole record say that nothing was ever written or read.

use smallvec::SmallVec;
use streamvm_ep::{Access, Footprint};
use streamvm_stream::Point;

use crate::soft_sync::observed::Observed;

/// The most writes of parts that a storage keeps apart, and the most reads on ordered streams. Each access compares its footprint
/// with all of them, at about 5 ns an entry, so this bounds the cost to about that of handing an instruction to another core.
pub const MOST_PARTS: usize = 64;

/// The least number of reads at which the list is checked for reads that have passed.
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
    /// Writes of this storage that no later write covers.
    writes: Vec<Part>,
    /// Accesses of former allocations of the memory. They order as writes of the whole do, but have no value that could have
    /// failed.
    former: Vec<Point>,
    /// Reads that no later write, and no later read on the same ordered stream, covers.
    reads: Vec<Part>,
    /// The number of reads at which the list is next checked for reads that have passed.
    reads_before_prune: usize,
    /// The instruction whose write of a part found the list full: it counts as a use of the whole storage.
    whole_for: Option<Point>,
}

impl Parts {
    /// Removes all accesses and keeps the capacity.
    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.former.clear();
        self.reads.clear();
        (self.reads_before_prune, self.whole_for) = (FEW, None);
    }

    /// Takes over the accesses of a record of the whole storage.
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

    /// The extent by which the instruction `at` is ordered: its own, or the whole storage if it writes a part and the list is full.
    /// Must be called for every use of an instruction before any of them is noted.
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
        // Reads on unordered streams are kept one by one, and each write of a part compares itself with all of them. So where there
        // are many, one write of the whole replaces them.
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

    /// The writes that an access of `extent` must come after. A reader checks these points for poison.
    pub(super) fn writes(&self, extent: &Footprint) -> impl Iterator<Item = Point> {
        meeting(&self.writes, extent)
    }

    /// The accesses of former allocations; every access must come after all of them.
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

    /// Notes a read.
    pub(super) fn note_read(&mut self, at: Point, extent: &Footprint, observed: &mut impl Observed) {
        if extent.is_empty() {
            return;
        }
        let whole = Footprint::all();
        let mut extent = extent;
        let ordered = !at.stream.is_unordered();
        let own = |part: &Part| part.point.stream == at.stream;
        if ordered {
            // A later read on an ordered stream comes after an earlier one, so it replaces a read that it covers.
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

    /// Notes a write of a part and returns true. Returns false, and changes nothing, if it counts as a write of the whole storage.
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

    /// Tries to join the record: returns the reads of the whole storage, if all writes were seen to have passed without a failure,
    /// all former accesses have passed, and no read of a part is left.
    pub(super) fn join(&mut self, observed: &mut impl Observed) -> Option<SmallVec<[Point; 3]>> {
        self.forget_writes_that_are_over(observed);
        // Each read of the whole tries this, so a long list of reads is checked again only once it has doubled.
        if !self.writes.is_empty() || (self.reads.len() > MOST_PARTS && self.reads.len() < self.reads_before_prune) {
            return None;
        }
        self.forget_reads_that_have_passed(observed);
        self.former.retain(|point| !observed.has_passed(*point));
        let whole = self.former.is_empty() && self.reads.iter().all(|part| part.extent == Footprint::all());
        whole.then(|| self.reads.iter().map(|part| part.point).collect())
    }

    fn forget_writes_that_are_over(&mut self, observed: &mut impl Observed) {
        self.writes.retain(|part| !observed.passed_without_failure(part.point));
    }

    fn forget_reads_that_have_passed(&mut self, observed: &mut impl Observed) {
        self.reads.retain(|part| !observed.has_passed(part.point));
        self.reads_before_prune = (2 * self.reads.len()).max(FEW);
    }
}

fn meeting(parts: &[Part], extent: &Footprint) -> impl Iterator<Item = Point> {
    parts.iter().filter(|part| extent.overlaps(&part.extent)).map(|part| part.point)
}

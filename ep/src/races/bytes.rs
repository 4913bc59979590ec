//! The state of a run of bytes, and the check of one access to it.
//!
//! A run keeps its allocation, whether it has been written in that allocation, the last write, and the last read of each actor since
//! then. The accesses are kept when the allocation changes, so that races across reuse are found. An access replaces those that are
//! ordered before it; an access that is not ordered after a kept one is a finding.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::call::label::Label;
use crate::call::operand::Access;
use crate::names::actor_id::ActorId;
use crate::races::clock::Clock;
use crate::races::finding::FindingKind;

/// The state of a run of bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bytes {
    /// The number of the region.
    pub(super) region: u64,
    /// The number of the allocation; 0 before the first.
    pub(super) allocation: u64,
    written: bool,
    last_write: Option<Mark>,
    /// At most one read per actor; more if the actor was reused for several parties.
    reads: SmallVec<[Mark; 2]>,
}

/// An access that was made.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) actor: ActorId,
    pub(super) label: Arc<Label>,
    pub(super) writes: bool,
    epoch: u64,
    allocation: u64,
}

impl PartialEq for Mark {
    fn eq(&self, other: &Mark) -> bool {
        (self.actor, self.epoch, self.allocation, self.writes)
            == (other.actor, other.epoch, other.allocation, other.writes)
            && Arc::ptr_eq(&self.label, &other.label)
    }
}

/// An access to be checked.
pub(super) struct Visit<'a> {
    pub(super) actor: ActorId,
    pub(super) clock: &'a Clock,
    pub(super) label: &'a Arc<Label>,
    pub(super) access: Access,
}

impl Visit<'_> {
    fn comes_after(&self, mark: &Mark) -> bool {
        self.clock.covers(mark.actor, mark.epoch)
    }

    fn mark(&self, allocation: u64, writes: bool) -> Mark {
        Mark { actor: self.actor, label: Arc::clone(self.label), writes, epoch: self.clock.now(), allocation }
    }
}

/// The kind of fault of an access, and the earlier access that it conflicts with.
pub(super) type Fault = (FindingKind, Option<Mark>);

impl Bytes {
    /// Bytes fresh from the driver: in no allocation, and not written.
    pub(super) fn fresh(region: u64) -> Bytes {
        Bytes { region, allocation: 0, written: false, last_write: None, reads: SmallVec::new() }
    }

    /// Checks an access of `allocation` and records it. An access of an older allocation than the current one is not recorded.
    pub(super) fn visit(&mut self, visit: &Visit<'_>, allocation: u64) -> Option<Fault> {
        if allocation < self.allocation {
            let fault = self.unordered(visit, true).map(|mark| (FindingKind::ReuseRace, Some(mark)));
            return fault.or_else(|| Some((FindingKind::AfterFree, self.latest().cloned())));
        }
        let mut fault = None;
        if allocation > self.allocation {
            fault = self.unordered(visit, true).map(|mark| (FindingKind::ReuseRace, Some(mark)));
            self.allocation = allocation;
            self.written = false;
        }
        fault = fault.or_else(|| {
            self.unordered(visit, visit.access.writes()).map(|mark| {
                let reused = mark.allocation != allocation;
                (if reused { FindingKind::ReuseRace } else { FindingKind::Conflict }, Some(mark))
            })
        });
        if visit.access.reads() && !self.written {
            // Reported once: from here on the bytes count as written.
            fault = fault.or(Some((FindingKind::NeverWritten, None)));
            self.written = true;
        }
        self.enter(visit, allocation);
        fault
    }

    /// Checks the return of the bytes to the driver, which counts as a write of all of them.
    pub(super) fn leave(&self, visit: &Visit<'_>) -> Option<Fault> {
        self.unordered(visit, true).map(|mark| (FindingKind::FreedInUse, Some(mark)))
    }

    /// A kept access that is not ordered before `visit`: the last write, or, `with_reads`, a read since then.
    fn unordered(&self, visit: &Visit<'_>, with_reads: bool) -> Option<Mark> {
        let reads = self.reads.iter().filter(|_| with_reads);
        self.last_write.iter().chain(reads).find(|mark| !visit.comes_after(mark)).cloned()
    }

    /// A kept access: the last write, else a read.
    fn latest(&self) -> Option<&Mark> {
        self.last_write.as_ref().or(self.reads.first())
    }

    fn enter(&mut self, visit: &Visit<'_>, allocation: u64) {
        if visit.access.writes() {
            self.written = true;
            self.last_write = Some(visit.mark(allocation, true));
            self.reads.clear();
            return;
        }
        let mark = visit.mark(allocation, false);
        match self.reads.iter_mut().find(|read| read.actor == visit.actor && visit.comes_after(read)) {
            Some(read) => *read = mark,
            None => self.reads.push(mark),
        }
    }
}

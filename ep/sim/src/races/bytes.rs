//! The state of a run of bytes, and the check of one access to it.
//!
//! A run keeps its allocation, whether it has been written in that allocation, the last write, and the last read of each actor since
//! then. The accesses are kept when the allocation changes, so that races across reuse are found. An access replaces those that are
//! ordered before it; an access that is not ordered after a kept one is a finding.

use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::{Access, ActorId, Label};

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
    last_write: Option<PastAccess>,
    /// At most one read per actor; more if the actor was reused for several parties.
    reads: SmallVec<[PastAccess; 2]>,
}

/// An access that was made.
#[derive(Clone, Debug)]
pub(super) struct PastAccess {
    pub(super) actor: ActorId,
    pub(super) label: Arc<Label>,
    pub(super) writes: bool,
    epoch: u64,
    allocation: u64,
}

impl PartialEq for PastAccess {
    fn eq(&self, other: &PastAccess) -> bool {
        (self.actor, self.epoch, self.allocation, self.writes)
            == (other.actor, other.epoch, other.allocation, other.writes)
            && Arc::ptr_eq(&self.label, &other.label)
    }
}

/// An access to be checked.
pub(super) struct NewAccess<'a> {
    pub(super) actor: ActorId,
    pub(super) clock: &'a Clock,
    pub(super) label: &'a Arc<Label>,
    pub(super) access: Access,
}

impl NewAccess<'_> {
    fn comes_after(&self, past: &PastAccess) -> bool {
        self.clock.covers(past.actor, past.epoch)
    }

    fn to_past(&self, allocation: u64, writes: bool) -> PastAccess {
        PastAccess { actor: self.actor, label: Arc::clone(self.label), writes, epoch: self.clock.now(), allocation }
    }
}

/// The kind of fault of an access, and the earlier access that it conflicts with.
pub(super) type Fault = (FindingKind, Option<PastAccess>);

impl Bytes {
    /// Bytes fresh from the driver: in no allocation, and not written.
    pub(super) fn fresh(region: u64) -> Bytes {
        Bytes { region, allocation: 0, written: false, last_write: None, reads: SmallVec::new() }
    }

    /// Checks an access of `allocation` and records it. An access of an older allocation than the current one is not recorded.
    pub(super) fn check(&mut self, access: &NewAccess<'_>, allocation: u64) -> Option<Fault> {
        if allocation < self.allocation {
            let fault = self.unordered(access, true).map(|past| (FindingKind::ReuseRace, Some(past)));
            return fault.or_else(|| Some((FindingKind::AfterFree, self.latest().cloned())));
        }
        let mut fault = None;
        if allocation > self.allocation {
            fault = self.unordered(access, true).map(|past| (FindingKind::ReuseRace, Some(past)));
            self.allocation = allocation;
            self.written = false;
        }
        fault = fault.or_else(|| {
            self.unordered(access, access.access.writes()).map(|past| {
                let reused = past.allocation != allocation;
                (if reused { FindingKind::ReuseRace } else { FindingKind::Conflict }, Some(past))
            })
        });
        if access.access.reads() && !self.written {
            // Reported once: from here on the bytes count as written.
            fault = fault.or(Some((FindingKind::NeverWritten, None)));
            self.written = true;
        }
        self.record(access, allocation);
        fault
    }

    /// Checks the return of the bytes to the driver, which counts as a write of all of them.
    pub(super) fn check_unmap(&self, access: &NewAccess<'_>) -> Option<Fault> {
        self.unordered(access, true).map(|past| (FindingKind::FreedInUse, Some(past)))
    }

    /// A kept access that is not ordered before `access`: the last write, or, `with_reads`, a read since then.
    fn unordered(&self, access: &NewAccess<'_>, with_reads: bool) -> Option<PastAccess> {
        let reads = self.reads.iter().filter(|_| with_reads);
        self.last_write.iter().chain(reads).find(|past| !access.comes_after(past)).cloned()
    }

    /// A kept access: the last write, else a read.
    fn latest(&self) -> Option<&PastAccess> {
        self.last_write.as_ref().or(self.reads.first())
    }

    fn record(&mut self, access: &NewAccess<'_>, allocation: u64) {
        if access.access.writes() {
            self.written = true;
            self.last_write = Some(access.to_past(allocation, true));
            self.reads.clear();
            return;
        }
        let past = access.to_past(allocation, false);
        match self.reads.iter_mut().find(|read| read.actor == access.actor && access.comes_after(read)) {
            Some(read) => *read = past,
            None => self.reads.push(past),
        }
    }
}

//! What is known about a run of bytes, and the judgement of one access of it.
//!
//! Kept per run: the life that the bytes belong to, whether something has written them in it, the last write, and the
//! last read of each actor since then. Accesses stay when the life changes, so that races across reuse are seen. An
//! access replaces what it comes after; where it does not come after it, that is the finding.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::label::Label;
use crate::operand::Access;
use crate::races::clock::{ActorId, Clock};
use crate::races::finding::FindingKind;

/// The state of a run of bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bytes {
    /// The region that they lie in.
    pub(super) region: u64,
    /// The life that they belong to; 0 before the first.
    pub(super) life: u64,
    written: bool,
    last_write: Option<Mark>,
    /// At most one per actor; more where that was several, one after the other.
    reads: SmallVec<[Mark; 2]>,
}

/// An access that was made.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) actor: ActorId,
    pub(super) label: Arc<Label>,
    pub(super) writes: bool,
    epoch: u64,
    life: u64,
}

impl PartialEq for Mark {
    fn eq(&self, other: &Mark) -> bool {
        (self.actor, self.epoch, self.life, self.writes) == (other.actor, other.epoch, other.life, other.writes)
            && Arc::ptr_eq(&self.label, &other.label)
    }
}

/// An access to be judged.
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

    fn mark(&self, life: u64, writes: bool) -> Mark {
        Mark { actor: self.actor, label: Arc::clone(self.label), writes, epoch: self.clock.now(), life }
    }
}

/// What is wrong with an access, and the earlier access that it is wrong with.
pub(super) type Fault = (FindingKind, Option<Mark>);

impl Bytes {
    /// Bytes that came from the driver: nobody's, and not written.
    pub(super) fn fresh(region: u64) -> Bytes {
        Bytes { region, life: 0, written: false, last_write: None, reads: SmallVec::new() }
    }

    /// Judges an access in `life` and enters it. An access of a life that has been followed by another is not entered.
    pub(super) fn visit(&mut self, visit: &Visit<'_>, life: u64) -> Option<Fault> {
        if life < self.life {
            let fault = self.unordered(visit, true).map(|mark| (FindingKind::ReuseRace, Some(mark)));
            return fault.or_else(|| Some((FindingKind::AfterFree, self.latest().cloned())));
        }
        let mut fault = None;
        if life > self.life {
            fault = self.unordered(visit, true).map(|mark| (FindingKind::ReuseRace, Some(mark)));
            self.life = life;
            self.written = false;
        }
        fault = fault.or_else(|| {
            self.unordered(visit, visit.access.writes()).map(|mark| {
                let reused = mark.life != life;
                (if reused { FindingKind::ReuseRace } else { FindingKind::Conflict }, Some(mark))
            })
        });
        if visit.access.reads() && !self.written {
            // Said once: the bytes count as written from here on.
            fault = fault.or(Some((FindingKind::NeverWritten, None)));
            self.written = true;
        }
        self.enter(visit, life);
        fault
    }

    /// Judges giving the bytes back: like a write of all of them.
    pub(super) fn leave(&self, visit: &Visit<'_>) -> Option<Fault> {
        self.unordered(visit, true).map(|mark| (FindingKind::FreedInUse, Some(mark)))
    }

    /// A kept access that `visit` does not come after: the last write, or, for a write, a read since then.
    fn unordered(&self, visit: &Visit<'_>, with_reads: bool) -> Option<Mark> {
        let reads = self.reads.iter().filter(|_| with_reads);
        self.last_write.iter().chain(reads).find(|mark| !visit.comes_after(mark)).cloned()
    }

    /// Some access that is kept, the last write rather than a read.
    fn latest(&self) -> Option<&Mark> {
        self.last_write.as_ref().or(self.reads.first())
    }

    fn enter(&mut self, visit: &Visit<'_>, life: u64) {
        if visit.access.writes() {
            self.written = true;
            self.last_write = Some(visit.mark(life, true));
            self.reads.clear();
            return;
        }
        let mark = visit.mark(life, false);
        match self.reads.iter_mut().find(|read| read.actor == visit.actor && visit.comes_after(read)) {
            Some(read) => *read = mark,
            None => self.reads.push(mark),
        }
    }
}

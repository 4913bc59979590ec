//! Room: bounds on what is pending, and the submitters that wait for it.
//!
//! Above the high mark a submitter blocks; it goes on once what is pending has fallen to the low mark, half of it, so
//! that it is not woken for every instruction. What is pending is read off the timelines, exactly, when it is needed;
//! an instruction that passes costs one load here while nobody is blocked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use crate::sync::unpoisoned;

/// How much may be pending.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// Instructions.
    pub(crate) instructions: u64,
    /// Bytes of new outputs and boxed captures.
    pub(crate) bytes: u64,
}

/// What is pending.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) instructions: u64,
    pub(crate) bytes: u64,
}

impl Limits {
    /// Whether `more` instructions may be added. A list that is larger than the bound is let in alone.
    pub(crate) fn admit(&self, pending: Pending, more: u64) -> bool {
        let fits = pending.instructions + more <= self.instructions && pending.bytes < self.bytes;
        fits || pending.instructions == 0
    }

    /// Whether a blocked submitter of `more` instructions may go on.
    fn low(&self, pending: Pending, more: u64) -> bool {
        let target = (self.instructions / 2).min(self.instructions.saturating_sub(more));
        pending.instructions <= target && pending.bytes <= self.bytes / 2 || pending.instructions == 0
    }

    /// The bounds for a thread of the engine, which must not block: as much again.
    pub(crate) fn overdraft(&self) -> Limits {
        Limits { instructions: self.instructions.saturating_mul(2), bytes: self.bytes.saturating_mul(2) }
    }
}

/// The submitters that wait for room.
#[derive(Default)]
pub(crate) struct Room {
    blocked: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Room {
    /// How many submitters are blocked.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Lets blocked submitters look again. Called after each instruction has passed.
    pub(crate) fn announce(&self) {
        // SeqCst against the publication before it and the announcement in `wait`: one of the two sees the other.
        if self.blocked.load(Ordering::SeqCst) > 0 {
            self.notify();
        }
    }

    #[cold]
    fn notify(&self) {
        drop(unpoisoned(self.lock.lock()));
        self.changed.notify_all();
    }

    /// Blocks until there is room for `more` instructions, or `give_up` says so.
    pub(crate) fn wait(&self, limits: Limits, more: u64, pending: impl Fn() -> Pending, give_up: impl Fn() -> bool) {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let mut guard = unpoisoned(self.lock.lock());
        while !limits.low(pending(), more) && !give_up() {
            guard = unpoisoned(self.changed.wait(guard));
        }
        drop(guard);
        self.blocked.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bounds_admit_up_to_the_high_mark_and_resume_at_the_low_one() {
        let limits = Limits { instructions: 8, bytes: 100 };
        let at = |instructions, bytes| Pending { instructions, bytes };
        assert!(limits.admit(at(6, 0), 2));
        assert!(!limits.admit(at(7, 0), 2));
        assert!(!limits.admit(at(1, 100), 1));
        assert!(limits.admit(at(1, 99), 1));
        assert!(limits.admit(at(0, 0), 1_000), "a list larger than the bound is let in alone");
        assert!(!limits.low(at(5, 0), 1));
        assert!(limits.low(at(4, 0), 1));
        assert!(!limits.low(at(4, 51), 1));
        assert!(!limits.low(at(4, 0), 6), "room for the list itself");
        assert!(limits.overdraft().admit(at(9, 0), 2));
    }
}

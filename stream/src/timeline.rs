//! Timelines: how far a stream has come, and whether anybody wants to know.
//!
//! A timeline is two numbers. `passed` is written by the one thread that runs the stream, and only grows. `wanted`
//! is the lowest sequence number that somebody sleeps for, [`NOBODY`] when there is none; it is written by whoever
//! keeps the list of sleepers, under that list's lock.
//!
//! The protocol is Dekker's: the runner stores `passed`, then loads `wanted`; a sleeper stores `wanted`, then loads
//! `passed`. Both use `SeqCst`, so at least one of them sees the other: a sleeper never misses the number it waits for
//! (loom model in `tests/loom_timeline.rs`). With acquire / release alone both could read the old value.
//!
//! Invariants:
//! * A load of `passed` that returns n sees everything the instructions up to n wrote (release / acquire).
//! * Captures of instruction n are dropped before n is published.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

/// `wanted` when nobody sleeps.
const NOBODY: u64 = u64::MAX;

/// Progress of one ordered stream. Shared between the stream's runner, who advances it, and everyone who waits.
#[derive(Debug)]
pub struct Timeline {
    /// Read by pollers while the runner writes it: a line of its own keeps `wanted` out of that traffic.
    passed: CachePadded<AtomicU64>,
    wanted: CachePadded<AtomicU64>,
}

impl Timeline {
    /// Nothing has passed.
    pub fn new() -> Timeline {
        Timeline { passed: CachePadded::new(AtomicU64::new(0)), wanted: CachePadded::new(AtomicU64::new(NOBODY)) }
    }

    /// The highest sequence number that has passed, with all before it.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// Publishes that everything up to `seq` has passed. Only the stream's runner calls this, with growing numbers.
    /// Returns whether somebody sleeps for a number up to `seq`: then the caller must wake them.
    #[must_use = "sleepers must be woken"]
    pub fn advance(&self, seq: u64) -> bool {
        self.passed.store(seq, Ordering::SeqCst);
        self.wanted.load(Ordering::SeqCst) <= seq
    }

    /// Announces the lowest number that somebody sleeps for (`None`: nobody), under the lock of the list of sleepers.
    /// Returns how far the stream had come by then: whoever waits for less must not sleep.
    #[must_use = "a number that has passed meanwhile will not be announced again"]
    pub fn want(&self, lowest: Option<u64>) -> u64 {
        self.wanted.store(lowest.unwrap_or(NOBODY), Ordering::SeqCst);
        self.passed.load(Ordering::SeqCst)
    }
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn advancing_tells_whether_somebody_sleeps_for_it() {
        let timeline = Timeline::new();
        assert!(!timeline.advance(1));
        assert_eq!(timeline.want(Some(3)), 1);
        assert!(!timeline.advance(2));
        assert!(timeline.advance(3));
        assert_eq!(timeline.want(None), 3);
        assert!(!timeline.advance(4));
        assert_eq!(timeline.passed(), 4);
    }
}

//! Timelines: how far a stream has come, and whether anybody wants to know.
//!
//! A timeline is two numbers. `passed` is written by one thread at a time, which runs the stream, and only grows. `wanted`
//! is the lowest sequence number that somebody sleeps for, [`NOBODY`] when there is none; it is written by whoever
//! keeps the list of sleepers, under that list's lock.
//!
//! Nobody is missed: the runner swaps `passed`, then loads `wanted`; a sleeper stores `wanted`, then reads `passed` by a
//! read-modify-write. Those two read-modify-writes are on one location, so one of them comes first. If the runner's does,
//! the sleeper reads the new number and does not sleep; if the sleeper's does, the runner's swap reads from it, and so
//! sees the `wanted` stored before it. A plain load in the sleeper would let both read the old value. The loom models
//! below show both.
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
        self.passed.swap(seq, Ordering::SeqCst);
        self.wanted.load(Ordering::SeqCst) <= seq
    }

    /// Announces the lowest number that somebody sleeps for (`None`: nobody), under the lock of the list of sleepers.
    /// Returns how far the stream had come by then: whoever waits for less must not sleep.
    #[must_use = "a number that has passed meanwhile will not be announced again"]
    pub fn want(&self, lowest: Option<u64>) -> u64 {
        self.wanted.store(lowest.unwrap_or(NOBODY), Ordering::SeqCst);
        // Adds nothing: it reads the newest number, and is ordered with the runner's swap.
        self.passed.fetch_add(0, Ordering::SeqCst)
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

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use loom::thread;

    use super::*;

    /// A sleeper for number 1 and the runner that passes it; `want` is how the sleeper announces itself and looks.
    fn never_missed(want: fn(&Timeline) -> u64) {
        loom::model(move || {
            let shared = Arc::new((Timeline::new(), AtomicBool::new(false)));
            let runner = {
                let shared = shared.clone();
                thread::spawn(move || {
                    if shared.0.advance(1) {
                        shared.1.store(true, Ordering::Release);
                    }
                })
            };
            let sleeps = want(&shared.0) < 1;
            runner.join().expect("the runner does not panic");
            assert!(!sleeps || shared.1.load(Ordering::Acquire), "the sleeper sleeps and was not woken");
        });
    }

    #[test]
    fn loom_a_sleeper_is_never_missed() {
        never_missed(|timeline| timeline.want(Some(1)));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_sleeper_that_looks_by_a_plain_load_is_missed() {
        never_missed(|timeline| {
            timeline.wanted.store(1, Ordering::SeqCst);
            timeline.passed.load(Ordering::Acquire)
        });
    }

    #[test]
    fn loom_who_sees_a_number_sees_what_was_written_before_it() {
        loom::model(|| {
            let shared = Arc::new((Timeline::new(), AtomicU64::new(0)));
            let runner = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(7, Ordering::Relaxed);
                    let _ = shared.0.advance(1);
                })
            };
            if shared.0.passed() >= 1 {
                assert_eq!(shared.1.load(Ordering::Relaxed), 7);
            }
            runner.join().expect("the runner does not panic");
        });
    }
}

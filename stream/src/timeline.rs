//! Timelines: the last point of a stream that has passed, and the lowest one that a parked thread waits for.
//!
//! A timeline has two numbers. `passed` only grows; the thread that runs the stream writes it, and only one thread runs it at a
//! time. `wanted` is the lowest sequence number that a parked thread waits for, or [`NOBODY`]; it is written under the lock of the
//! list of waiters.
//!
//! No wake-up is lost. The runner swaps `passed` and then loads `wanted`. A waiter stores `wanted` and then reads `passed` by a
//! read-modify-write. These two read-modify-writes are on one location, so one of them comes first:
//! * If the runner's comes first, the waiter reads the new number and does not park.
//! * If the waiter's comes first, the runner's swap reads from it, and so sees the `wanted` that was stored before it.
//!
//! With a plain load in the waiter, both could read the old value. The loom models below show both cases.
//!
//! Invariants:
//! * A load of `passed` that returns n sees everything that the instructions up to n wrote (release / acquire).
//! * The captures of instruction n are dropped before n is published.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

/// The value of `wanted` while no thread is parked.
const NOBODY: u64 = u64::MAX;

/// The progress of one ordered stream, shared by the stream's runner, which advances it, and the threads that wait.
#[derive(Debug)]
pub struct Timeline {
    /// Waiters poll it while the runner writes it. A cache line of its own keeps `wanted` out of that traffic.
    passed: CachePadded<AtomicU64>,
    wanted: CachePadded<AtomicU64>,
}

impl Timeline {
    /// A timeline on which nothing has passed.
    pub fn new() -> Timeline {
        Timeline { passed: CachePadded::new(AtomicU64::new(0)), wanted: CachePadded::new(AtomicU64::new(NOBODY)) }
    }

    /// The highest sequence number that has passed, with all before it.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// Publishes that everything up to `seq` has passed. Only the stream's runner calls this, with growing numbers. Returns whether
    /// a parked thread waits for a number up to `seq`: then the caller must wake it.
    #[must_use = "sleepers must be woken"]
    pub fn advance(&self, seq: u64) -> bool {
        self.passed.swap(seq, Ordering::SeqCst);
        self.wanted.load(Ordering::SeqCst) <= seq
    }

    /// Announces the lowest number that a parked thread waits for (`None` if there is none). The caller holds the lock of the list
    /// of waiters. Returns the highest number that has passed by then: a thread that waits for that number or a lower one must not
    /// park.
    #[must_use = "a number that has passed meanwhile will not be announced again"]
    pub fn want(&self, lowest: Option<u64>) -> u64 {
        self.wanted.store(lowest.unwrap_or(NOBODY), Ordering::SeqCst);
        // Adding 0 changes nothing, but a read-modify-write reads the newest number and is ordered with the runner's swap.
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
    fn advance_returns_whether_a_waiter_is_registered() {
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

    /// A waiter for number 1, and the runner that passes it. `want` is how the waiter announces itself and reads `passed`.
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
            assert!(!sleeps || shared.1.load(Ordering::Acquire), "the waiter parks and was not woken");
        });
    }

    #[test]
    fn loom_a_waiter_is_always_woken() {
        never_missed(|timeline| timeline.want(Some(1)));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_waiter_that_checks_by_a_plain_load_is_not_woken() {
        never_missed(|timeline| {
            timeline.wanted.store(1, Ordering::SeqCst);
            timeline.passed.load(Ordering::Acquire)
        });
    }

    #[test]
    fn loom_a_reader_of_a_number_sees_the_writes_before_it() {
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

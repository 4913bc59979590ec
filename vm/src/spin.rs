//! Spinning before sleeping: how long a thread looks again before it parks.
//!
//! Waking a parked thread costs about 1.6 µs, and up to 50 µs on a virtual machine; a look at a line that nobody writes
//! costs a nanosecond. A thread that spins takes a core from a thread that works, so with one core nobody spins.
//! Looks are spaced out by [`PAUSES`] pause instructions: a spinner that looks without pause takes the line away from
//! whoever is writing to it, and a push costs a cache miss each. Where an answer is waited for, one line is looked at between
//! them, too: [`Spin::turn`].

use std::sync::OnceLock;

use crate::sync::yield_now;

/// Looks of a thread context before it parks.
pub(crate) const CONTEXT: u32 = 40;

/// Looks of the scheduler before it parks. It has work only when something is held back.
pub(crate) const SCHEDULER: u32 = 10;

/// Looks of a caller before it parks.
pub(crate) const CALLER: u32 = 40;

/// Pause instructions between two looks. Measured on 2 cores before there were glances, ns, medians of submit and wait / a chain
/// of single submissions: 8 pauses 500 / 267, 16 pauses 660 / 232, 48 pauses 1,430 / 203. Fewer looks leave the line to the
/// pushers, more looks answer sooner.
const PAUSES: u32 = 16;

/// A look in so many gives the core away if somebody else wants it: with more threads than cores, the one that is waited
/// for may be waiting for this very core, and a woken thread often starts on its waker's. Measured on 2 loaded cores, ns an
/// instruction without / with it: chain in lists of 64 254 / 129, random over 4 lanes 1,484 / 667.
const YIELD_EVERY: u32 = 4;

/// A context looks into its inbox at one look in so many, unless a caller waits. A program that submits one instruction at a
/// time and waits for none is quicker when they are taken in several at once: each look takes the line of the inbox, and then
/// those of the slots, away from the submitter. Measured on 2 cores, ns, medians of 4 runs in turns, every look / one in 4 /
/// one in 8: chain of single submissions 215 / 147 / 134, eager additions 905 / 781 / 661, submit and wait 837 / 946 / 1,050.
///
/// So do workers, while they have something queued too. Two workers, medians of 5 runs in turns, every look / one in 8: chain of
/// single submissions 397 / 248, independent 271 / 244, fan 287 / 266, submit and wait 905 / 1,036.
pub(crate) const INBOX_EVERY: u32 = 8;

/// A context that has found fewer in its inbox waits for the next look that is spaced out, unless a caller waits. It has caught
/// up: looking at once it would find less each time, down to one, and each time take the line of the inbox away. Measured on 2 cores,
/// ns an instruction of a chain of single submissions: 125 to 150 where a look finds 3 or 4, 62 to 90 where it finds 20 or more. Since they
/// come through a ring, medians of 58 runs in turns, fewer than 16 / than 64: eager additions 110.8 / 108.4, the chain 45.9 / 45.8.
pub(crate) const FEW: usize = 64;

/// Looks with one core, each of which gives it away. A thread that still looks need not be woken by a system call, after which
/// the system often lets it run at once, one instruction at a time. Measured on one core, ns, least of 4 runs, none / 1 / 2 / 4:
/// chain of single submissions 474 / 232 / 223 / 229, in lists of 64 177 / 140 / 134 / 143, random in lists 328 / 276 / 334 / 409,
/// submit and wait 3,330 / 2,690 / 2,590 / 2,590.
const WITH_ONE_CORE: u32 = 1;

/// A bounded number of looks.
pub(crate) struct Spin {
    most: u32,
    left: u32,
}

impl Spin {
    /// `looks` looks, or one that gives the core away on a machine with one.
    pub(crate) fn new(looks: u32) -> Spin {
        // Where schedules are drawn, a look more is a schedule point more and finds nothing new.
        let most = if cfg!(any(loom, shuttle)) { 0 } else { looks };
        let most = if has_one_core() { most.min(WITH_ONE_CORE) } else { most };
        Spin { most, left: most }
    }

    /// Whether this look is one of every `n`, and the last of them.
    pub(crate) fn is_nth(&self, n: u32) -> bool {
        self.left < self.most && self.left.is_multiple_of(n)
    }

    /// Pauses before the next look; false once there were enough. Ends early when `glance` says so, which is asked at every pause: it
    /// must be one look at one line. Who waits glances at what it waits for, and who is waited for at its inbox, until the waiter parks:
    /// it pushes nothing meanwhile. Measured on 2 cores, ns, medians of 15 runs in turns, without / with it: submit and wait
    /// 792 / 501, on workers 871 / 552.
    #[inline]
    pub(crate) fn turn(&mut self, glance: impl Fn() -> bool) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if has_one_core() {
            yield_now();
            return true;
        }
        if self.left.is_multiple_of(YIELD_EVERY) {
            yield_now();
        }
        for _ in 0..PAUSES {
            std::hint::spin_loop();
            if glance() {
                break;
            }
        }
        true
    }
}

/// Whether all threads of this process take turns on one core.
pub(crate) fn has_one_core() -> bool {
    static ONE: OnceLock<bool> = OnceLock::new();
    *ONE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1))
}

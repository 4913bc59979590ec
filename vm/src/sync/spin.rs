//! Spinning before parking: how often a thread polls before it parks.
//!
//! Waking a parked thread costs about 1.6 µs, and up to 50 µs on a virtual machine; polling a cache line that no other thread
//! writes costs about a nanosecond. A spinning thread occupies a core that another thread could use, so on a machine with one core
//! a thread yields instead.
//!
//! Polls are [`PAUSES`] pause instructions apart: a thread that polls without pause keeps taking the cache line away from its
//! writer, so that each push costs a cache miss. A thread that waits for an answer may also poll one cache line at every pause: the
//! *spin check* of [`Spin::turn`].

use std::sync::OnceLock;

use crate::sync::yield_now;

/// Polls of a thread context before it parks.
pub(crate) const CONTEXT: u32 = 40;

/// Polls of the scheduler before it parks. Few, because the scheduler has work only when a task is held back.
pub(crate) const SCHEDULER: u32 = 10;

/// Polls of a caller before it parks.
pub(crate) const CALLER: u32 = 40;

/// Pause instructions between two polls. Fewer polls leave the cache line to the threads that push, more polls answer sooner. On 2
/// cores, without spin checks, ns, submit and wait / chain of single submissions: 8 pauses 500 / 267, 16 pauses 660 / 232, 48
/// pauses 1,430 / 203.
const PAUSES: u32 = 16;

/// One poll in this many yields the core. With more threads than cores, the thread that is waited for may need this very core, and
/// a woken thread often starts on its waker's core. On 2 loaded cores, ns an instruction, without / with it: chain in lists of 64
/// 254 / 129, random over 4 lanes 1,484 / 667.
const YIELD_EVERY: u32 = 4;

/// A thread context polls its inbox at one poll in this many, unless a caller waits. Each poll takes the cache line of the inbox,
/// and then those of the node boxes, away from the submitter, so a program that submits single instructions without waiting runs
/// faster when the context takes several at once. On 2 cores, ns, every poll / one in 4 / one in 8: chain of single submissions 215
/// / 147 / 134, eager additions 905 / 781 / 661, submit and wait 837 / 946 / 1,050. One in 16 is no better (docs/adr/dispatch.md).
///
/// Workers do the same while they have tasks of their own queued. Two workers, every poll / one in 8: chain 397 / 248, submit and
/// wait 905 / 1,036.
pub(crate) const INBOX_EVERY: u32 = 8;

/// A context that took fewer tasks than this from its inbox waits for the next spaced poll, unless a caller waits. It has caught up
/// with the submitter: polling at once would find fewer tasks each time, down to one, and take the inbox's cache line away each
/// time (docs/adr/dispatch.md).
pub(crate) const FEW: usize = 64;

/// Polls on a machine with one core; each yields it. A thread that still polls needs no system call to be woken, after which the
/// operating system often runs the woken thread at once, one instruction at a time. On one core, ns, for 0 / 1 / 2 / 4 polls: chain
/// of single submissions 474 / 232 / 223 / 229, random in lists 328 / 276 / 334 / 409, submit and wait 3,330 / 2,690 / 2,590 /
/// 2,590.
const WITH_ONE_CORE: u32 = 1;

/// A bounded number of polls.
pub(crate) struct Spin {
    most: u32,
    left: u32,
}

impl Spin {
    /// `looks` polls; at most [`WITH_ONE_CORE`] on a machine with one core.
    pub(crate) fn new(looks: u32) -> Spin {
        // In loom and shuttle a poll would only add schedule points and find nothing new.
        let most = if cfg!(any(loom, shuttle)) { 0 } else { looks };
        let most = if has_one_core() { most.min(WITH_ONE_CORE) } else { most };
        Spin { most, left: most }
    }

    /// Whether this is one of every `n` polls; the last poll always is, the first never.
    pub(crate) fn is_nth(&self, n: u32) -> bool {
        self.left < self.most && self.left.is_multiple_of(n)
    }

    /// Pauses before the next poll; false when all polls are used up. The pause ends early when `spin_check` returns true.
    /// `spin_check` is called at every pause, so it must be a single load of one cache line: a waiting caller polls the number that
    /// it waits for, and a thread context polls its inbox while a caller waits, because that caller pushes nothing meanwhile
    /// (docs/adr/waiting-callers.md).
    #[inline]
    pub(crate) fn turn(&mut self, spin_check: impl Fn() -> bool) -> bool {
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
            if spin_check() {
                break;
            }
        }
        true
    }
}

/// Whether this process may use only one core.
pub(crate) fn has_one_core() -> bool {
    static ONE: OnceLock<bool> = OnceLock::new();
    *ONE.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1))
}

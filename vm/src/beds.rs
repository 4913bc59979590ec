//! Beds: the threads of a pool sleep here, and whoever brings work wakes one of them.
//!
//! The protocol is that of one sleeper (`sleep.rs`), with a set of who sleeps: a thread announces itself there, looks for work
//! once more, and lies down; who brings work looks at the set, takes one out and wakes it. Who was taken out and is awake
//! already goes to look for work, so the wake-up is not lost on it; and who finds more than it can do wakes the next.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sleep::Sleeper;
use crate::sync::{AtomicU64, Ordering};

/// The most threads of one pool: a bit each.
pub(crate) const MOST: usize = u64::BITS as usize;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Beds {
    sleepers: Box<[Arc<Sleeper>]>,
    /// Who sleeps or is about to.
    asleep: CachePadded<AtomicU64>,
}

impl Beds {
    /// For these threads, [`MOST`] at most.
    pub(crate) fn new(sleepers: impl IntoIterator<Item = Arc<Sleeper>>) -> Beds {
        Beds { sleepers: sleepers.into_iter().take(MOST).collect(), asleep: CachePadded::default() }
    }

    /// Whether somebody sleeps.
    #[inline]
    pub(crate) fn somebody_sleeps(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0
    }

    /// Wakes one, if one sleeps. What it should see must be visible already.
    pub(crate) fn wake_one(&self) {
        let mut asleep = self.asleep.load(Ordering::SeqCst);
        while asleep != 0 {
            let one = asleep.trailing_zeros() as usize;
            asleep = self.take_out(one);
            if asleep & (1 << one) != 0 {
                return self.sleepers[one].wake();
            }
        }
    }

    /// Thread `one` announces that it will sleep. It must look for work once more before it calls [`Beds::sleep`], and
    /// [`Beds::rise`] instead if it finds some.
    pub(crate) fn prepare(&self, one: usize) {
        self.sleepers[one].prepare();
        self.asleep.fetch_or(1 << one, Ordering::SeqCst);
    }

    /// Sleeps until woken.
    pub(crate) fn sleep(&self, one: usize) {
        self.sleepers[one].sleep();
        // Somebody may have woken it without taking it out of the set.
        self.take_out(one);
    }

    /// Takes the announcement back.
    pub(crate) fn rise(&self, one: usize) {
        self.take_out(one);
        self.sleepers[one].cancel();
    }

    fn take_out(&self, one: usize) -> u64 {
        self.asleep.fetch_and(!(1 << one), Ordering::SeqCst)
    }
}

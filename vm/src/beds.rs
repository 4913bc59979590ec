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

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::inbox::Inbox;
    use crate::slot::{Chain, Slot};

    type Shared = (Inbox<u32>, Beds);

    fn shared(threads: usize) -> Arc<Shared> {
        Arc::new((Inbox::new(), Beds::new((0..threads).map(|_| std::sync::Arc::new(Sleeper::new())))))
    }

    fn bring(shared: &Shared) {
        let mut chain = Chain::new();
        chain.push(Slot::new(1));
        shared.0.push(&mut chain);
        shared.1.wake_one();
    }

    /// A worker that decides by `lies_down` whether it may sleep, and one who brings it work.
    fn never_missed(lies_down: fn(&Shared) -> bool) {
        loom::model(move || {
            let shared = shared(1);
            let bringer = {
                let shared = shared.clone();
                thread::spawn(move || bring(&shared))
            };
            let sleeps = lies_down(&shared);
            bringer.join().expect("the bringer does not panic");
            assert!(!(sleeps && shared.1.sleepers[0].is_sleeping()), "it sleeps and was not woken");
        });
    }

    #[test]
    fn loom_who_brings_work_wakes_one_that_lies_down() {
        never_missed(|(inbox, beds)| {
            beds.prepare(0);
            inbox.is_surely_empty()
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_one_that_looks_before_it_announces_itself_is_missed() {
        never_missed(|(inbox, beds)| {
            let empty = inbox.is_surely_empty();
            beds.prepare(0);
            empty
        });
    }

    #[test]
    fn loom_two_who_bring_work_wake_two() {
        loom::model(|| {
            let shared = shared(2);
            shared.1.prepare(0);
            shared.1.prepare(1);
            let bringer = {
                let shared = shared.clone();
                thread::spawn(move || bring(&shared))
            };
            bring(&shared);
            bringer.join().expect("the bringer does not panic");
            assert!(shared.1.sleepers.iter().all(|sleeper| !sleeper.is_sleeping()), "each has one of the two");
            assert!(!shared.1.somebody_sleeps());
        });
    }
}

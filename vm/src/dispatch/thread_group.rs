//! The threads that serve the strands of one device, and the queue of strands that wait for one of them.
//!
//! The ready queue and the list of parked threads are behind one lock, so that no wake-up is lost: a thread parks only if the queue is
//! empty while it adds itself to the list, and each push takes one thread off the list and wakes it. The lock is taken when a strand
//! changes hands, not for each task. A thread that serves a strand only reads the length of the queue.
//!
//! Strands of higher priority are served first. Within a priority, a strand that was queued is served before those that were queued after it,
//! and before those that already had their turn. One pick in [`FAIR_PICK_EVERY`] is of a lower level where a strand of one is ready, each lower
//! level in turn, so no strand starves: one with `n` others before it in its queue is taken within `FAIR_PICK_EVERY * (LEVELS - 1) * (n + 1)` picks. A
//! thread that finds that a caller runs the strand puts it back after the others of its level, and such picks come on top.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::pool::{FAIR_PICK_EVERY, LEVELS};
use crate::dispatch::strand::Queued;
use crate::sync::parker::Parker;
use crate::sync::{AtomicUsize, Mutex, Ordering, unpoisoned};
use crate::tasks::task::Level;

/// The threads of one device that serve its strands.
pub(crate) struct ThreadGroup {
    queues: Mutex<Queues>,
    /// How many strands are in the ready queues. Written under the lock; a hint for readers without it.
    ready: CachePadded<AtomicUsize>,
    /// The threads that were started, by their numbers.
    threads: Box<[OnceLock<Arc<ContextHandle>>]>,
}

/// The ready queues, and who waits for a strand.
#[derive(Default)]
struct Queues {
    /// The strands that wait for a thread, by level.
    ready: [VecDeque<Queued>; LEVELS],
    /// How many strands were taken so far, modulo 2^32.
    picks: u32,
    /// The threads that are parked or about to park. The last one that parked is woken first: its caches are the warmest.
    parked: Vec<Arc<Parker>>,
}

impl Queues {
    fn len(&self) -> usize {
        self.ready.iter().map(VecDeque::len).sum()
    }

    /// Takes the next strand.
    fn pick(&mut self) -> Option<Queued> {
        self.picks = self.picks.wrapping_add(1);
        let mut pop = |level: usize| self.ready[level].pop_front();
        if !self.picks.is_multiple_of(FAIR_PICK_EVERY) {
            return (0..LEVELS).find_map(pop);
        }
        let first = 1 + (self.picks / FAIR_PICK_EVERY) as usize % (LEVELS - 1);
        (first..LEVELS).chain(1..first).find_map(&mut pop).or_else(|| pop(0))
    }
}

impl ThreadGroup {
    /// A group of at most this many threads, none of which is started.
    pub(crate) fn new(most: usize) -> ThreadGroup {
        let threads = (0..most).map(|_| OnceLock::new()).collect();
        ThreadGroup { queues: Mutex::default(), ready: CachePadded::new(AtomicUsize::new(0)), threads }
    }

    /// Adds a thread, which calls this before it serves a strand.
    pub(crate) fn add_thread(&self, number: usize, thread: Arc<ContextHandle>) {
        // Cannot fail: a number is given to one thread.
        let _ = self.threads[number].set(thread);
    }

    /// The thread with this number.
    pub(crate) fn thread(&self, number: usize) -> Option<&Arc<ContextHandle>> {
        self.threads.get(number)?.get()
    }

    /// Puts a strand at the end of the ready queue of this level, and wakes a thread if one is parked.
    pub(crate) fn push(&self, strand: Queued, level: Level) {
        let mut queues = unpoisoned(self.queues.lock());
        queues.ready[usize::from(level)].push_back(strand);
        self.ready.store(queues.len(), Ordering::Relaxed);
        let woken = queues.parked.pop();
        drop(queues);
        if let Some(parker) = woken {
            parker.wake();
        }
    }

    /// Takes the next strand out of the ready queues.
    pub(crate) fn pop(&self) -> Option<Queued> {
        if !self.has_ready() {
            return None;
        }
        let mut queues = unpoisoned(self.queues.lock());
        let strand = queues.pick();
        self.ready.store(queues.len(), Ordering::Relaxed);
        strand
    }

    /// Whether a strand seems to wait for a thread. A hint: a relaxed load.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) > 0
    }

    /// Parks the calling thread, which `parker` belongs to, unless a strand is ready or `may_end` returns true. Blocks. `may_end` is called
    /// after the parker has announced that it parks: a thread that makes it true and then wakes the parker is not missed.
    pub(crate) fn park(&self, parker: &Arc<Parker>, may_end: impl FnOnce() -> bool) {
        if !self.prepare_park(parker, may_end) {
            return;
        }
        parker.sleep();
        // The parker may have been woken directly, without a push.
        unpoisoned(self.queues.lock()).parked.retain(|other| !Arc::ptr_eq(other, parker));
    }

    /// Adds the thread to the parked ones, unless there is something to do. Returns whether it was added.
    fn prepare_park(&self, parker: &Arc<Parker>, may_end: impl FnOnce() -> bool) -> bool {
        parker.prepare_park();
        let mut queues = unpoisoned(self.queues.lock());
        let parks = queues.len() == 0 && !may_end();
        if parks {
            queues.parked.push(parker.clone());
        }
        drop(queues);
        if !parks {
            parker.cancel_park();
        }
        parks
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::dispatch::pool::HIGH;

    /// A thread decides by `parks` whether it parks, while another thread pushes a strand.
    fn no_push_is_missed(parks: fn(&ThreadGroup, &std::sync::Arc<Parker>) -> bool) {
        loom::model(move || {
            let group = Arc::new(ThreadGroup::new(1));
            let pusher = {
                let group = group.clone();
                thread::spawn(move || group.push(Queued::of(7), HIGH))
            };
            let parker = std::sync::Arc::new(Parker::new());
            let parks = parks(&group, &parker);
            pusher.join().expect("the pusher does not panic");
            assert!(!(parks && parker.is_parked()), "it is parked and was not woken");
            assert_eq!(group.pop(), Some(Queued::of(7)));
        });
    }

    #[test]
    fn loom_a_thread_that_parks_is_woken_for_a_strand() {
        no_push_is_missed(|group, parker| group.prepare_park(parker, || false));
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_thread_that_checks_the_queue_before_it_takes_the_lock_is_missed() {
        no_push_is_missed(|group, parker| {
            parker.prepare_park();
            let parks = !group.has_ready();
            unpoisoned(group.queues.lock()).parked.push(parker.clone());
            parks
        });
    }

    /// Two strands wake two threads.
    #[test]
    fn loom_each_push_wakes_a_thread_of_its_own() {
        loom::model(|| {
            let group = ThreadGroup::new(2);
            let parkers = [0, 1].map(|_| std::sync::Arc::new(Parker::new()));
            parkers.iter().for_each(|parker| assert!(group.prepare_park(parker, || false)));
            group.push(Queued::of(0), HIGH);
            group.push(Queued::of(1), HIGH);
            assert!(parkers.iter().all(|parker| !parker.is_parked()));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dispatch::pool::HIGH;

    const NORMAL: Level = HIGH + 1;
    const LOWEST: Level = HIGH + 2;

    #[test]
    fn strands_of_higher_priority_are_taken_first() {
        let group = ThreadGroup::new(1);
        for (strand, level) in [(0, LOWEST), (1, NORMAL), (2, HIGH), (3, NORMAL), (4, HIGH)] {
            group.push(Queued::of(strand), level);
        }
        assert_eq!(group.ready.load(Ordering::Relaxed), 5);
        assert_eq!(std::array::from_fn(|_| group.pop()), [2, 4, 1, 3, 0].map(|strand| Some(Queued::of(strand))));
        assert_eq!((group.has_ready(), group.pop()), (false, None));
    }

    /// Strands of all levels are ready all the time. Each that is taken is queued again, after the others of its level.
    #[test]
    fn no_strand_starves() {
        let group = ThreadGroup::new(1);
        let levels = [HIGH, NORMAL, LOWEST];
        // Two strands of each level: 2 * level and 2 * level + 1.
        levels
            .iter()
            .for_each(|&level| (0..2).for_each(|other| group.push(Queued::of(2 * u32::from(level) + other), level)));
        // How many picks ago each strand was taken, or queued.
        let mut waited = [0; 2 * LEVELS];
        let mut taken = [0; 2 * LEVELS];
        for _ in 0..1_000 {
            let strand = group.pop().expect("all are ready").strand();
            waited.iter_mut().for_each(|picks| *picks += 1);
            assert!(waited.iter().all(|&picks| picks <= FAIR_PICK_EVERY as usize * (LEVELS - 1) * 2), "{waited:?}");
            (waited[strand as usize], taken[strand as usize]) = (0, taken[strand as usize] + 1);
            group.push(Queued::of(strand), levels[strand as usize / 2]);
        }
        assert!(taken[0] + taken[1] > 900, "most picks are of the highest priority: {taken:?}");
    }

    #[test]
    fn strands_are_taken_in_the_order_in_which_they_were_queued() {
        let group = ThreadGroup::new(1);
        assert_eq!((group.has_ready(), group.pop()), (false, None));
        (0..3).for_each(|strand| group.push(Queued::of(strand), HIGH));
        assert!(group.has_ready());
        assert_eq!(
            std::array::from_fn(|_| group.pop()),
            [0, 1, 2, 3].map(|strand| (strand < 3).then(|| Queued::of(strand)))
        );
    }

    /// A thread that was woken directly takes itself off the list, and no other: those are still woken for strands.
    #[test]
    fn a_thread_that_goes_on_leaves_the_others_parked() {
        let group = ThreadGroup::new(2);
        let parkers = [0, 1].map(|_| Arc::new(Parker::new()));
        assert!(group.prepare_park(&parkers[0], || false));
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| {
                parkers[1].belongs_here();
                group.park(&parkers[1], || false);
            });
            while unpoisoned(group.queues.lock()).parked.len() < 2 {
                std::thread::yield_now();
            }
            parkers[1].wake();
            parked.join().expect("it was woken");
        });
        assert_eq!(unpoisoned(group.queues.lock()).parked.len(), 1);
        group.push(Queued::of(5), HIGH);
        assert!(!parkers[0].is_parked());
    }

    #[test]
    fn the_thread_that_parked_last_is_woken_first() {
        let group = ThreadGroup::new(2);
        let parkers = [0, 1].map(|_| Arc::new(Parker::new()));
        parkers.iter().for_each(|parker| assert!(group.prepare_park(parker, || false)));
        group.push(Queued::of(5), HIGH);
        assert_eq!(parkers.each_ref().map(|parker| parker.is_parked()), [true, false]);
        group.push(Queued::of(6), HIGH);
        assert_eq!(parkers.each_ref().map(|parker| parker.is_parked()), [false, false]);
    }
}

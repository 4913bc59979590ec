//! The threads that serve the strands of one device, and the queue of strands that wait for one of them.
//!
//! The ready queue and the list of parked threads are behind one lock, so that no wake-up is lost: a thread parks only if the queue is
//! empty while it adds itself to the list, and each push takes one thread off the list and wakes it. The lock is taken when a strand
//! changes hands, not for each task. A thread that serves a strand only reads the length of the queue.
//!
//! First in, first out: a strand that was queued is served before those that were queued after it, and before those that already had
//! their turn.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;

use crate::dispatch::context_handle::ContextHandle;
use crate::sync::parker::Parker;
use crate::sync::{AtomicUsize, Mutex, Ordering, unpoisoned};

/// The threads of one device that serve its strands.
pub(crate) struct ThreadGroup {
    queues: Mutex<Queues>,
    /// The length of the ready queue. Written under the lock; a hint for readers without it.
    ready: CachePadded<AtomicUsize>,
    /// The threads that were started, by their numbers.
    threads: Box<[OnceLock<Arc<ContextHandle>>]>,
}

#[derive(Default)]
struct Queues {
    /// The numbers of the strands that wait for a thread.
    ready: VecDeque<u32>,
    /// The threads that are parked or about to park. The last one that parked is woken first: its caches are the warmest.
    parked: Vec<Arc<Parker>>,
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

    /// Puts a strand at the end of the ready queue, and wakes a thread if one is parked. The caller has made the strand's state `QUEUED`.
    pub(crate) fn push(&self, strand: u32) {
        let mut queues = unpoisoned(self.queues.lock());
        queues.ready.push_back(strand);
        self.ready.store(queues.ready.len(), Ordering::Relaxed);
        let woken = queues.parked.pop();
        drop(queues);
        if let Some(parker) = woken {
            parker.wake();
        }
    }

    /// Takes the first strand of the ready queue.
    pub(crate) fn pop(&self) -> Option<u32> {
        if !self.has_ready() {
            return None;
        }
        let mut queues = unpoisoned(self.queues.lock());
        let strand = queues.ready.pop_front();
        self.ready.store(queues.ready.len(), Ordering::Relaxed);
        strand
    }

    /// Whether a strand seems to wait for a thread. A hint: a relaxed load.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.ready() > 0
    }

    /// How many strands seem to wait for a thread. A hint: a relaxed load.
    #[inline]
    pub(crate) fn ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
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
        let parks = queues.ready.is_empty() && !may_end();
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

    /// A thread decides by `parks` whether it parks, while another thread pushes a strand.
    fn no_push_is_missed(parks: fn(&ThreadGroup, &std::sync::Arc<Parker>) -> bool) {
        loom::model(move || {
            let group = Arc::new(ThreadGroup::new(1));
            let pusher = {
                let group = group.clone();
                thread::spawn(move || group.push(7))
            };
            let parker = std::sync::Arc::new(Parker::new());
            let parks = parks(&group, &parker);
            pusher.join().expect("the pusher does not panic");
            assert!(!(parks && parker.is_parked()), "it is parked and was not woken");
            assert_eq!(group.pop(), Some(7));
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
            group.push(0);
            group.push(1);
            assert!(parkers.iter().all(|parker| !parker.is_parked()));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn strands_are_taken_in_the_order_in_which_they_were_queued() {
        let group = ThreadGroup::new(1);
        assert_eq!((group.has_ready(), group.pop()), (false, None));
        (0..3).for_each(|strand| group.push(strand));
        assert!(group.has_ready());
        assert_eq!(std::array::from_fn(|_| group.pop()), [Some(0), Some(1), Some(2), None]);
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
        group.push(5);
        assert!(!parkers[0].is_parked());
    }

    #[test]
    fn the_thread_that_parked_last_is_woken_first() {
        let group = ThreadGroup::new(2);
        let parkers = [0, 1].map(|_| Arc::new(Parker::new()));
        parkers.iter().for_each(|parker| assert!(group.prepare_park(parker, || false)));
        group.push(5);
        assert_eq!(parkers.each_ref().map(|parker| parker.is_parked()), [true, false]);
        group.push(6);
        assert_eq!(parkers.each_ref().map(|parker| parker.is_parked()), [false, false]);
    }
}

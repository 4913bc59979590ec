//! The idle set of a pool: its parked threads, one of which is woken when work arrives.
//!
//! The protocol is that of a single parker (`sync/parker.rs`), with a set of parked threads:
//! 1. A thread adds itself to the set, checks for work once more, and parks.
//! 2. A thread that adds work reads the set, removes one thread from it, and wakes that thread.
//!
//! A thread that was removed while it is still awake finds the work in its second check, so the wake-up is not lost. A thread that
//! finds more work than it can do wakes the next.
//!
//! Work is in one of two places:
//! * In an inbox, whose push and second check are read-modify-writes of one location and therefore ordered.
//! * In the queues of workers (`pool.rs`), whose implementation belongs to another library. There both sides have a fence.
//!
//! The loom models below cover both, the second with queues that guarantee no ordering at all.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sync::parker::Parker;
use crate::sync::{AtomicU64, Ordering, fence};

/// The most threads of one pool: one bit each.
pub(crate) const MOST: usize = u64::BITS as usize;

/// The parked threads of one pool.
#[derive(Debug)]
pub(crate) struct IdleSet {
    parkers: Box<[Arc<Parker>]>,
    /// One bit for each thread that is parked or about to park.
    asleep: CachePadded<AtomicU64>,
}

impl IdleSet {
    /// An empty set for these threads, of which the first [`MOST`] count.
    pub(crate) fn new(parkers: impl IntoIterator<Item = Arc<Parker>>) -> IdleSet {
        IdleSet { parkers: parkers.into_iter().take(MOST).collect(), asleep: CachePadded::default() }
    }

    /// Whether a thread is parked or about to park.
    #[inline]
    pub(crate) fn any_parked(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0
    }

    /// Wakes one thread, if one is parked. The caller must have published the work before this call.
    pub(crate) fn wake_one(&self) {
        let mut asleep = self.asleep.load(Ordering::SeqCst);
        while asleep != 0 {
            let one = asleep.trailing_zeros() as usize;
            asleep = self.take_out(one);
            if asleep & (1 << one) != 0 {
                return self.parkers[one].wake();
            }
        }
    }

    /// Parks thread `one` unless there is work. Blocks. No call of [`notify`](IdleSet::notify) is missed: each side writes, has a
    /// fence, and then reads what the other writes, so at least one of them sees the other. The queues need not order anything.
    pub(crate) fn park_unless(&self, one: usize, has_work: impl FnOnce() -> bool) {
        if self.prepare_park(one, has_work) {
            self.sleep(one);
        }
    }

    /// Announces that thread `one` is about to park, and checks for work once more. If there is some, withdraws the announcement
    /// and returns false.
    fn prepare_park(&self, one: usize, has_work: impl FnOnce() -> bool) -> bool {
        self.prepare(one);
        // After the announcement, and before the second check for work.
        fence(Ordering::SeqCst);
        let sleeps = !has_work();
        if !sleeps {
            self.cancel_park(one);
        }
        sleeps
    }

    /// Wakes one thread, if one is parked and there is work. The caller must have made the work visible to `has_work` before this
    /// call.
    #[inline]
    pub(crate) fn notify(&self, has_work: impl FnOnce() -> bool) {
        // After the work was added, and before the set is read.
        fence(Ordering::SeqCst);
        if self.any_parked() && has_work() {
            self.wake_one();
        }
    }

    /// Announces that thread `one` is about to park. The thread must then check for work once more, and call
    /// [`IdleSet::cancel_park`] if there is some, else [`IdleSet::sleep`].
    fn prepare(&self, one: usize) {
        self.parkers[one].prepare_park();
        self.asleep.fetch_or(1 << one, Ordering::SeqCst);
    }

    /// Parks until woken.
    fn sleep(&self, one: usize) {
        self.parkers[one].sleep();
        // Its parker may have been woken directly, without removing it from the set.
        self.take_out(one);
    }

    /// Withdraws the announcement.
    fn cancel_park(&self, one: usize) {
        self.take_out(one);
        self.parkers[one].cancel_park();
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
    use crate::queue::mpsc::MpscQueue;
    use crate::queue::node::{NodeBox, NodeList};

    type Shared = (MpscQueue<u32>, IdleSet);

    fn shared(threads: usize) -> Arc<Shared> {
        Arc::new((MpscQueue::new(), IdleSet::new((0..threads).map(|_| std::sync::Arc::new(Parker::new())))))
    }

    fn inject(shared: &Shared) {
        let mut list = NodeList::new();
        list.push(NodeBox::new(1));
        shared.0.push(&mut list);
        shared.1.wake_one();
    }

    /// A worker that decides by `prepares_park` whether it may park, and a thread that adds work.
    fn never_missed(prepares_park: fn(&Shared) -> bool) {
        loom::model(move || {
            let shared = shared(1);
            let adder = {
                let shared = shared.clone();
                thread::spawn(move || inject(&shared))
            };
            let sleeps = prepares_park(&shared);
            adder.join().expect("the adder does not panic");
            assert!(!(sleeps && shared.1.parkers[0].is_parked()), "it sleeps and was not woken");
        });
    }

    #[test]
    fn loom_a_thread_that_adds_work_wakes_one_that_is_about_to_park() {
        never_missed(|(inbox, idle_set)| {
            idle_set.prepare(0);
            inbox.is_surely_empty()
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_checks_before_it_announces_is_not_woken() {
        never_missed(|(inbox, idle_set)| {
            let empty = inbox.is_surely_empty();
            idle_set.prepare(0);
            empty
        });
    }

    #[test]
    fn loom_two_threads_that_add_work_wake_two() {
        loom::model(|| {
            let shared = shared(2);
            shared.1.prepare(0);
            shared.1.prepare(1);
            let adder = {
                let shared = shared.clone();
                thread::spawn(move || inject(&shared))
            };
            inject(&shared);
            adder.join().expect("the adder does not panic");
            assert!(shared.1.parkers.iter().all(|parker| !parker.is_parked()), "each has one of the two");
            assert!(!shared.1.any_parked());
        });
    }

    /// Queues that guarantee no ordering: the number of tasks is written and read relaxed, as the queues of the pool may do, and
    /// taken by a read-modify-write.
    struct Queued {
        tasks: AtomicU64,
        idle_set: IdleSet,
    }

    impl Queued {
        fn new(threads: usize) -> Arc<Queued> {
            let idle_set = IdleSet::new((0..threads).map(|_| std::sync::Arc::new(Parker::new())));
            Arc::new(Queued { tasks: AtomicU64::new(0), idle_set })
        }

        fn has_work(&self) -> bool {
            self.tasks.load(Ordering::Relaxed) > 0
        }

        fn queue(&self, tasks: u64) {
            self.tasks.store(tasks, Ordering::Relaxed);
        }

        fn take(&self) -> bool {
            self.tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tasks| tasks.checked_sub(1)).is_ok()
        }

        fn notify(&self) {
            self.idle_set.notify(|| self.has_work());
        }
    }

    /// A worker that has found nothing decides by `prepare_park` whether it parks, while another thread queues a task and calls
    /// `notify`.
    fn never_missed_beside_a_queue(prepare_park: fn(&Queued) -> bool, notify: fn(&Queued)) {
        loom::model(move || {
            let queued = Queued::new(1);
            let worker = {
                let queued = queued.clone();
                thread::spawn(move || prepare_park(&queued))
            };
            queued.queue(1);
            notify(&queued);
            let sleeps = worker.join().expect("the worker does not panic");
            assert!(!(sleeps && queued.idle_set.parkers[0].is_parked()), "it sleeps and was not woken");
        });
    }

    fn prepare_park(queued: &Queued) -> bool {
        queued.idle_set.prepare_park(0, || queued.has_work())
    }

    #[test]
    fn loom_a_worker_that_parks_beside_a_queue_is_woken() {
        never_missed_beside_a_queue(prepare_park, Queued::notify);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_parks_without_a_second_check_is_not_woken() {
        let no_second_look = |queued: &Queued| {
            queued.idle_set.prepare(0);
            true
        };
        never_missed_beside_a_queue(no_second_look, Queued::notify);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_parks_without_a_fence_is_not_woken() {
        let no_fence = |queued: &Queued| {
            queued.idle_set.prepare(0);
            !queued.has_work()
        };
        never_missed_beside_a_queue(no_fence, Queued::notify);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_queues_without_a_fence_wakes_no_worker() {
        never_missed_beside_a_queue(prepare_park, |queued| {
            if queued.idle_set.any_parked() {
                queued.idle_set.wake_one();
            }
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_queues_without_a_notification_wakes_no_worker() {
        never_missed_beside_a_queue(prepare_park, |_| ());
    }

    /// Two tasks are queued and one worker is notified; one worker is parked, the other about to park. Each takes one task, and a
    /// worker that takes one calls `notify` because of the rest.
    fn both_are_woken(notify: fn(&Queued)) {
        loom::model(move || {
            let queued = Queued::new(2);
            queued.idle_set.prepare(1);
            let worker = {
                let queued = queued.clone();
                thread::spawn(move || {
                    let takes = queued.take() || (!prepare_park(&queued) && queued.take());
                    if takes {
                        notify(&queued);
                    }
                    takes
                })
            };
            queued.queue(2);
            queued.notify();
            let mut took = [worker.join().expect("the worker does not panic"), false];
            // The woken workers go on, one after the other.
            for one in [0, 1, 0] {
                if !took[one] && !queued.idle_set.parkers[one].is_parked() && queued.take() {
                    took[one] = true;
                    notify(&queued);
                }
            }
            assert_eq!(took, [true; 2], "one sleeps and was not woken");
        });
    }

    #[test]
    fn loom_a_worker_that_finds_more_than_it_can_do_wakes_the_next() {
        both_are_woken(Queued::notify);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_finds_more_without_a_notification_wakes_no_worker() {
        both_are_woken(|_| ());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn set(threads: usize) -> IdleSet {
        IdleSet::new((0..threads).map(|_| Arc::new(Parker::new())))
    }

    #[test]
    fn each_call_wakes_one_of_the_parked_threads() {
        let idle_set = set(3);
        [0, 2].into_iter().for_each(|one| idle_set.prepare(one));
        let parked = || idle_set.parkers.iter().filter(|parker| parker.is_parked()).count();
        for left in [1, 0, 0] {
            idle_set.wake_one();
            assert_eq!((parked(), idle_set.any_parked()), (left, left > 0));
        }
    }

    /// If it stayed in the set, the next call would wake it in place of a parked thread.
    #[test]
    fn a_thread_that_finds_work_leaves_the_set() {
        let idle_set = set(2);
        idle_set.prepare(1);
        idle_set.park_unless(0, || true);
        assert!(!idle_set.parkers[0].is_parked());
        idle_set.wake_one();
        assert!(!idle_set.parkers[1].is_parked() && !idle_set.any_parked());
    }
}

//! Beds: the threads of a pool sleep here, and whoever brings work wakes one of them.
//!
//! The protocol is that of one sleeper (`sleep.rs`), with a set of who sleeps: a thread announces itself there, looks for work
//! once more, and lies down; who brings work looks at the set, takes one out and wakes it. Who was taken out and is awake
//! already goes to look for work, so the wake-up is not lost on it; and who finds more than it can do wakes the next.
//!
//! Work is in an inbox, whose push and second look are read-modify-writes of one location, or in the queues of workers
//! (`pool.rs`), which are another library's: there both sides have a fence. The models below show both, for queues that promise no
//! order at all.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sleep::Sleeper;
use crate::sync::{AtomicU64, Ordering, fence};

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

    /// Has thread `one` sleep, unless there is work for it. Nobody who [tells](Beds::tell) of work is missed: each of the two writes, has
    /// a fence, and reads what the other has written, so one of them sees the other, and no look at a queue has to order anything.
    pub(crate) fn lie_down(&self, one: usize, has_work: impl FnOnce() -> bool) {
        if self.may_sleep(one, has_work) {
            self.sleep(one);
        }
    }

    /// Announces that thread `one` sleeps, and looks for work once more. If there is some, the announcement is taken back.
    fn may_sleep(&self, one: usize, has_work: impl FnOnce() -> bool) -> bool {
        self.prepare(one);
        // Behind the announcement, and before the second look for work.
        fence(Ordering::SeqCst);
        let sleeps = !has_work();
        if !sleeps {
            self.rise(one);
        }
        sleeps
    }

    /// Wakes one, if one sleeps and there is work for it, which was put where it is found before this call.
    #[inline]
    pub(crate) fn tell(&self, has_work: impl FnOnce() -> bool) {
        // Behind what was put there, and before the look at who sleeps.
        fence(Ordering::SeqCst);
        if self.somebody_sleeps() && has_work() {
            self.wake_one();
        }
    }

    /// Thread `one` announces that it will sleep. It must look for work once more before it calls [`Beds::sleep`], and
    /// [`Beds::rise`] instead if it finds some.
    fn prepare(&self, one: usize) {
        self.sleepers[one].prepare();
        self.asleep.fetch_or(1 << one, Ordering::SeqCst);
    }

    /// Sleeps until woken.
    fn sleep(&self, one: usize) {
        self.sleepers[one].sleep();
        // Somebody may have woken it without taking it out of the set.
        self.take_out(one);
    }

    /// Takes the announcement back.
    fn rise(&self, one: usize) {
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

    /// Queues of workers, of which the protocol may expect nothing: how much is queued is written and read without order, as the
    /// queues of the pool may do, and taken by a read-modify-write.
    struct Queued {
        jobs: AtomicU64,
        beds: Beds,
    }

    impl Queued {
        fn new(threads: usize) -> Arc<Queued> {
            let beds = Beds::new((0..threads).map(|_| std::sync::Arc::new(Sleeper::new())));
            Arc::new(Queued { jobs: AtomicU64::new(0), beds })
        }

        fn has_work(&self) -> bool {
            self.jobs.load(Ordering::Relaxed) > 0
        }

        fn queue(&self, jobs: u64) {
            self.jobs.store(jobs, Ordering::Relaxed);
        }

        fn take(&self) -> bool {
            self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |jobs| jobs.checked_sub(1)).is_ok()
        }

        fn tell(&self) {
            self.beds.tell(|| self.has_work());
        }
    }

    /// A worker that has found nothing decides by `may_sleep` whether it sleeps, while another queues a job and tells by `tell`.
    fn never_missed_beside_a_queue(may_sleep: fn(&Queued) -> bool, tell: fn(&Queued)) {
        loom::model(move || {
            let queued = Queued::new(1);
            let worker = {
                let queued = queued.clone();
                thread::spawn(move || may_sleep(&queued))
            };
            queued.queue(1);
            tell(&queued);
            let sleeps = worker.join().expect("the worker does not panic");
            assert!(!(sleeps && queued.beds.sleepers[0].is_sleeping()), "it sleeps and was not woken");
        });
    }

    fn may_sleep(queued: &Queued) -> bool {
        queued.beds.may_sleep(0, || queued.has_work())
    }

    #[test]
    fn loom_a_worker_that_lies_down_beside_a_queue_is_never_missed() {
        never_missed_beside_a_queue(may_sleep, Queued::tell);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_looks_at_the_queues_no_second_time_is_missed() {
        let no_second_look = |queued: &Queued| {
            queued.beds.prepare(0);
            true
        };
        never_missed_beside_a_queue(no_second_look, Queued::tell);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_lies_down_without_a_fence_is_missed() {
        let no_fence = |queued: &Queued| {
            queued.beds.prepare(0);
            !queued.has_work()
        };
        never_missed_beside_a_queue(no_fence, Queued::tell);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_queues_without_a_fence_misses_one_that_lies_down() {
        never_missed_beside_a_queue(may_sleep, |queued| {
            if queued.beds.somebody_sleeps() {
                queued.beds.wake_one();
            }
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_queues_and_tells_nobody_misses_one_that_lies_down() {
        never_missed_beside_a_queue(may_sleep, |_| ());
    }

    /// Two jobs are queued and one worker is told; one worker sleeps, the other is about to. Each has time for one job, and whoever takes
    /// one tells of the rest by `tell`.
    fn both_are_told(tell: fn(&Queued)) {
        loom::model(move || {
            let queued = Queued::new(2);
            queued.beds.prepare(1);
            let worker = {
                let queued = queued.clone();
                thread::spawn(move || {
                    let takes = queued.take() || (!may_sleep(&queued) && queued.take());
                    if takes {
                        tell(&queued);
                    }
                    takes
                })
            };
            queued.queue(2);
            queued.tell();
            let mut took = [worker.join().expect("the worker does not panic"), false];
            // Those that were woken go on, one after the other.
            for one in [0, 1, 0] {
                if !took[one] && !queued.beds.sleepers[one].is_sleeping() && queued.take() {
                    took[one] = true;
                    tell(&queued);
                }
            }
            assert_eq!(took, [true; 2], "one sleeps and was not woken");
        });
    }

    #[test]
    fn loom_a_worker_that_finds_more_than_it_can_do_wakes_the_next() {
        both_are_told(Queued::tell);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_worker_that_finds_more_and_tells_nobody_leaves_the_next_asleep() {
        both_are_told(|_| ());
    }
}

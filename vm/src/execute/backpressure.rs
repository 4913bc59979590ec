//! Backpressure: bounds on pending instructions and bytes, and the queue of submitters that wait for room.
//!
//! A submitter that would exceed the high mark (the bound) blocks until what is pending has fallen to the low mark, half of the bound, so
//! that it is not woken for every instruction that passes. What is pending is computed exactly from the timelines when it is needed. While
//! no submitter is blocked, an instruction that passes costs one load here.
//!
//! **Admission is first in, first out** ([`Queue`]):
//! * While a submitter waits, later threads of callers queue after it, or are refused if they must not wait. So a list that needs much
//!   room waits for what is pending and for the submitters before it, and never for later ones.
//! * At the low mark the first in the queue is admitted, and with it as many after it as fit under the high mark. The thread that sees the
//!   low mark admits them; mostly that is one that passes instructions.
//! * An admitted submitter leaves the queue with a *grant*: its instructions count as pending until the list is submitted or given up.
//!
//! **Threads of the engine never wait.** They overtake the queue within their overdraft. Once they have submitted as many instructions
//! ahead of the first in the queue as may be pending, the first is admitted even without room. So at most the overdraft and one more list
//! may be pending.
//!
//! **Shares make the check cheap.** While a submitter is blocked, the threads that pass instructions must check what is pending, which
//! costs time in proportion to the number of streams. Therefore:
//! * A check divides the excess over the low mark into equal shares, one for each part that passes instructions. A part checks again
//!   only after it has passed its share. So all of the excess cannot pass without a check: some thread would have passed its share.
//! * A check publishes the share, and then reads once more what is pending. If an instruction passes at the same time, the check sees its
//!   number, or the thread that passes it sees the share.
//! * When a thread is added, the share is set to 0, and the next instruction that passes triggers a check.

use std::collections::VecDeque;
use std::sync::Arc;

use streamvm_instructions::{Deadline, Error};

use crate::execute::environment::Environment;
use crate::execute::stall::Watch;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, fence, unpoisoned};

/// Bounds on what may be pending.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// Number of instructions.
    pub(crate) instructions: u64,
    /// Bytes of new outputs and boxed captures.
    pub(crate) bytes: u64,
}

/// What a submitter waits for, in words.
pub(crate) const FULL: &str = "the queue is full, or other submitters wait for room in it";

/// Instructions that are submitted on one core before the submitter yields the core to the threads that run them: few enough that the data
/// just written is still in the cache and node boxes are reused before new ones are made, many enough that switches do not matter. Measured
/// on one core, 256 / 512 / 1,024 / 2,048: a chain in lists of 64 takes 46.5 / 41.5 / 39.0 / 38.7 ns an instruction.
const STRIDE: u64 = 1024;

/// What is pending.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) instructions: u64,
    pub(crate) bytes: u64,
}

impl Limits {
    /// Whether `more` instructions may be added. A list larger than the bound is admitted when no instruction is pending.
    pub(crate) fn admit(&self, pending: Pending, more: u64) -> bool {
        let fits = pending.instructions + more <= self.instructions && pending.bytes < self.bytes;
        fits || pending.instructions == 0
    }

    /// How much may be added before the next check of what is pending, given that `more` instructions may. On one core at most [`STRIDE`]
    /// instructions, or `more`.
    pub(crate) fn headroom(&self, pending: Pending, more: u64, one_core: bool) -> Pending {
        let free = self.instructions.saturating_sub(pending.instructions);
        Pending {
            instructions: if one_core { free.min(STRIDE) } else { free }.max(more),
            bytes: self.bytes.saturating_sub(pending.bytes),
        }
    }

    /// The low mark in instructions for a blocked submitter of `more`: low enough that the list itself fits.
    fn low_instructions(&self, more: u64) -> u64 {
        (self.instructions / 2).min(self.instructions.saturating_sub(more))
    }

    /// Whether a blocked submitter of `more` instructions may go on.
    fn low(&self, pending: Pending, more: u64) -> bool {
        let low = pending.instructions <= self.low_instructions(more) && pending.bytes <= self.bytes / 2;
        low || pending.instructions == 0
    }

    /// The bounds for a thread of the engine, which must not block: twice the normal ones.
    pub(crate) fn overdraft(&self) -> Limits {
        Limits { instructions: self.instructions.saturating_mul(2), bytes: self.bytes.saturating_mul(2) }
    }
}

/// What a thread that passes instructions counts while a submitter is blocked.
#[derive(Default)]
pub(crate) struct PassCounter {
    /// Instructions that it has passed since its last check.
    passed: u64,
}

/// Each thread's share of the excess over the low mark. As long as no thread has passed its share, not all of the excess has passed.
fn share(pending: u64, low: u64, threads: u64) -> u64 {
    pending.saturating_sub(low) / threads.max(1)
}

/// The bounds' state: the queue of submitters that wait for room, and the counters that other threads read without its lock.
pub(crate) struct Backpressure {
    /// The first in the queue waits and has not been admitted: threads that pass instructions must check.
    armed: AtomicBool,
    /// The low mark of the first in the queue: with more pending instructions it cannot be admitted.
    low: AtomicU64,
    /// Instructions that one thread passes between two checks. 0 if there was no check yet: then each instruction triggers one.
    share: AtomicU64,
    /// Length of the queue. Written under its lock.
    blocked: AtomicUsize,
    /// Instructions of admitted submitters that are not submitted yet. Written under the lock. All accesses are sequentially consistent: a
    /// check whose share replaces the 0 of the next submitter must not read a grant that was dropped before.
    granted: AtomicU64,
    /// Instructions that threads of the engine have submitted since the first in the queue became the first. May include a few earlier
    /// ones.
    overtaken: AtomicU64,
    queue: Mutex<Queue>,
}

/// Submitters in the order of arrival.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Number of submitters that have arrived so far.
    came: u64,
    /// Condition variables of submitters that no longer wait, for reuse.
    spare: Vec<Arc<Condvar>>,
}

struct Waiting {
    /// The submitter's number by arrival.
    number: u64,
    /// Instructions that it wants to submit.
    more: u64,
    /// Notified when the submitter is admitted, and when it has become the first and must check.
    admitted: Arc<Condvar>,
}

impl Queue {
    fn push(&mut self, more: u64) -> (u64, Arc<Condvar>) {
        let (number, admitted) = (self.came, self.spare.pop().unwrap_or_else(|| Arc::new(Condvar::new())));
        self.came += 1;
        self.waiting.push_back(Waiting { number, more, admitted: admitted.clone() });
        (number, admitted)
    }

    /// The index of a submitter in the queue; `None` once it was admitted.
    fn position(&self, number: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()
    }

    fn notify_first(&self) {
        self.waiting.front().into_iter().for_each(|first| first.admitted.notify_one());
    }
}

/// A submitter's position in the queue.
pub(crate) struct QueuePosition {
    number: u64,
    admitted: Arc<Condvar>,
    more: u64,
}

/// The grant of an admitted submitter. Dropped once its list is submitted, or will not be.
pub(crate) struct Grant<'a> {
    backpressure: &'a Backpressure,
    more: u64,
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let queue = unpoisoned(self.backpressure.queue.lock());
        self.backpressure.granted.fetch_sub(self.more, Ordering::SeqCst);
        // If the list was not submitted, no instruction of it passes that would trigger a check: the first must check now.
        queue.notify_first();
    }
}

impl Backpressure {
    pub(crate) fn new() -> Backpressure {
        Backpressure {
            armed: AtomicBool::new(false),
            low: AtomicU64::new(0),
            share: AtomicU64::new(0),
            blocked: AtomicUsize::new(0),
            granted: AtomicU64::new(0),
            overtaken: AtomicU64::new(0),
            queue: Mutex::default(),
        }
    }

    /// Number of blocked submitters.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked.load(Ordering::Acquire)
    }

    /// Instructions of admitted submitters that may not be submitted yet.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::SeqCst)
    }

    /// Notes that a thread of the engine submits `more` instructions while submitters wait.
    pub(crate) fn overtake(&self, more: u64) {
        self.overtaken.fetch_add(more, Ordering::Relaxed);
    }

    /// Whether a list of `more` instructions waits; only the test submits lists of that length.
    #[cfg(all(test, shuttle))]
    pub(crate) fn waits_for(&self, more: u64) -> bool {
        unpoisoned(self.queue.lock()).waiting.iter().any(|waiting| waiting.more == more)
    }

    /// Checks what is pending, if a submitter is blocked and this thread has passed its share. Called after each instruction has passed.
    #[inline]
    pub(crate) fn note_passed(&self, env: &Environment, counter: &mut PassCounter) {
        // SeqCst against the publication before it and the arming in `admit_waiting`: one of the two threads sees the other's store.
        if self.armed.load(Ordering::SeqCst) {
            counter.passed += 1;
            if counter.passed >= self.share.load(Ordering::SeqCst) {
                self.check(env, counter);
            }
        }
    }

    /// Makes every thread check at its next instruction that passes, because a thread was added, or the first in the queue changed. The
    /// caller makes that change first: a check that does not see the change has published its share before this store.
    pub(crate) fn void_shares(&self) {
        self.share.store(0, Ordering::SeqCst);
    }

    #[cold]
    fn check(&self, env: &Environment, counter: &mut PassCounter) {
        counter.passed = 0;
        let mut published = u64::MAX;
        loop {
            // If two contexts pass the last instructions at the same time, one sees the other's number. A context that passes more than its
            // share either sees the share, or its number is seen here.
            fence(Ordering::SeqCst);
            let pending = self.pending(env);
            let low = self.low.load(Ordering::SeqCst);
            let enough = pending.instructions <= low && pending.bytes <= env.limits.bytes / 2;
            let due = enough || pending.instructions == 0 || self.is_overtaken(env);
            if due && self.armed.swap(false, Ordering::SeqCst) {
                // This thread admits the submitters; it does not leave that to the first one's wake-up, for which all others would have to
                // wait.
                let mut queue = unpoisoned(self.queue.lock());
                self.admit_waiting(&mut queue, env);
                drop(queue);
                published = u64::MAX;
                continue;
            }
            if !self.armed.load(Ordering::SeqCst) {
                return;
            }
            let share = share(pending.instructions, low, env.contexts.passing());
            if published <= share {
                break;
            }
            self.share.store(share, Ordering::SeqCst);
            published = share;
        }
        // The first is still blocked, perhaps by instructions submitted since the last demand: demand those, too.
        env.demand_all();
    }

    /// Makes all waiting submitters check, because the engine is closed.
    pub(crate) fn notify(&self) {
        let queue = unpoisoned(self.queue.lock());
        queue.waiting.iter().for_each(|waiting| waiting.admitted.notify_one());
    }

    /// What is pending, including what was granted.
    fn pending(&self, env: &Environment) -> Pending {
        // The grants are read first: instructions that are submitted meanwhile count twice, never not at all.
        let granted = self.granted();
        let Pending { instructions, bytes } = env.pending();
        Pending { instructions: instructions + granted, bytes }
    }

    /// Whether threads of the engine have overtaken the first in the queue by as many instructions as may be pending.
    fn is_overtaken(&self, env: &Environment) -> bool {
        self.overtaken.load(Ordering::Relaxed) >= env.limits.instructions
    }

    /// Adds a submitter of `more` instructions at the end of the queue. The caller holds the submission lock and leaves no headroom, so
    /// every later submission checks for room and sees that this one waits.
    pub(crate) fn enqueue(&self, more: u64) -> QueuePosition {
        let mut queue = unpoisoned(self.queue.lock());
        if queue.waiting.is_empty() {
            self.overtaken.store(0, Ordering::Relaxed);
        }
        let (number, admitted) = queue.push(more);
        self.blocked.store(queue.waiting.len(), Ordering::Relaxed);
        QueuePosition { number, admitted, more }
    }

    /// Blocks until the submitter at this position is admitted: all before it have left the queue, and there is room. The room is granted to
    /// it, whatever is submitted meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Shutdown`] when the engine is closed.
    pub(crate) fn wait(
        &self,
        env: &Environment,
        position: QueuePosition,
        deadline: Option<Deadline>,
    ) -> Result<Grant<'_>, Error> {
        let mut watch = Watch::new(env);
        let QueuePosition { number, admitted, more } = position;
        let mut queue = unpoisoned(self.queue.lock());
        loop {
            if queue.position(number) == Some(0) {
                self.admit_waiting(&mut queue, env);
            }
            let Some(position) = queue.position(number) else {
                queue.spare.push(admitted);
                return Ok(Grant { backpressure: self, more });
            };
            if position == 0 {
                // Devices that run commands later complete only what is demanded, and granted instructions may have been submitted since
                // the last demand. The lock is kept: a thread that makes room notifies the first under it, so no notification is lost.
                env.demand_all();
            }
            let over = deadline.filter(Deadline::is_over).map(|deadline| deadline.error(FULL.to_owned()));
            let closed = env.closed.load(Ordering::SeqCst).then(Error::shutdown);
            if let Some(error) = closed.or(over) {
                queue.waiting.remove(position);
                queue.spare.push(admitted);
                self.blocked.store(queue.waiting.len(), Ordering::Relaxed);
                if queue.waiting.is_empty() {
                    self.armed.store(false, Ordering::SeqCst);
                }
                queue.notify_first();
                return Err(error);
            }
            queue = match watch.nap(deadline) {
                None => unpoisoned(admitted.wait(queue)),
                Some(nap) => unpoisoned(admitted.wait_timeout(queue, nap)).0,
            };
            if watch.is_due() {
                drop(queue);
                watch.look(env);
                queue = unpoisoned(self.queue.lock());
            }
        }
    }

    /// Admits the first in the queue if what is pending is at the low mark, and after it as many as fit under the high mark, so that a
    /// submitter does not block again at each submission. Arms the check for the new first. Called by the first, and by threads that pass
    /// instructions, under the queue's lock.
    fn admit_waiting(&self, queue: &mut Queue, env: &Environment) {
        let limits = env.limits;
        let mut any = false;
        while let Some(first) = queue.waiting.front() {
            self.low.store(limits.low_instructions(first.more), Ordering::SeqCst);
            self.void_shares();
            self.armed.store(true, Ordering::SeqCst);
            // Orders the arming before the reads of the timelines, which are acquire loads.
            fence(Ordering::SeqCst);
            let pending = self.pending(env);
            let fits = if any { limits.admit(pending, first.more) } else { limits.low(pending, first.more) };
            if !fits && !self.is_overtaken(env) {
                break;
            }
            any = true;
            self.granted.fetch_add(first.more, Ordering::SeqCst);
            self.overtaken.store(0, Ordering::Relaxed);
            first.admitted.notify_one();
            queue.waiting.pop_front();
        }
        // After the grant: a thread that reads that no submitter waits also sees what was granted.
        self.blocked.store(queue.waiting.len(), Ordering::Release);
        if queue.waiting.is_empty() {
            self.armed.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bounds_admit_up_to_the_high_mark_and_resume_at_the_low_one() {
        let limits = Limits { instructions: 8, bytes: 100 };
        let at = |instructions, bytes| Pending { instructions, bytes };
        assert!(limits.admit(at(6, 0), 2));
        assert!(!limits.admit(at(7, 0), 2));
        assert!(!limits.admit(at(1, 100), 1));
        assert!(limits.admit(at(1, 99), 1));
        assert!(limits.admit(at(0, 0), 1_000), "a list larger than the bound is admitted alone");
        assert!(!limits.low(at(5, 0), 1));
        assert!(limits.low(at(4, 0), 1));
        assert!(limits.low(at(4, 50), 1));
        assert!(!limits.low(at(4, 51), 1));
        assert!(!limits.low(at(4, 0), 6), "room for the list itself");
        assert!(limits.overdraft().admit(at(9, 0), 2));
    }

    #[test]
    fn on_one_core_headroom_is_at_most_one_stride() {
        let limits = Limits { instructions: 16_384, bytes: 100 };
        let pending = Pending { instructions: 384, bytes: 40 };
        assert_eq!(limits.headroom(pending, 1, false), Pending { instructions: 16_000, bytes: 60 });
        assert_eq!(limits.headroom(pending, 1, true), Pending { instructions: STRIDE, bytes: 60 });
        assert_eq!(limits.headroom(pending, 5_000, true).instructions, 5_000, "a longer list is admitted whole");
        let nearly_full = Pending { instructions: 16_380, bytes: 0 };
        assert_eq!(limits.headroom(nearly_full, 1, true).instructions, 4);
    }

    #[test]
    fn the_excess_does_not_pass_before_one_thread_has_passed_its_share() {
        for threads in 1..6 {
            for too_many in 1..40 {
                let share = share(100 + too_many, 100, threads);
                // A thread checks once it has passed its share, and at each instruction if its share is 0.
                assert!(threads * share.saturating_sub(1) < too_many, "{threads} threads, {too_many} too many");
            }
        }
        assert_eq!(share(9, 10, 3), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// The fences of the protocol of [`Backpressure`](super::Backpressure), each of which a variant leaves out. Some stand for a
    /// sequentially consistent access: loom treats such accesses as acquire and release only, so the model has the fence that they imply.
    #[derive(Copy, Clone)]
    struct Fences {
        /// Between arming and the read of what is pending.
        armed: bool,
        /// In each of two contexts, between passing an instruction and the check.
        passed: bool,
        /// Not a fence: each check that publishes a share reads what is pending once more.
        published: bool,
    }

    const ALL: Fences = Fences { armed: true, passed: true, published: true };

    struct Model {
        armed: AtomicBool,
        share: AtomicU64,
        lock: Mutex<()>,
        changed: Condvar,
        /// The number of instructions that each of two contexts has passed, of `all`.
        passed: [AtomicU64; 2],
        all: [u64; 2],
    }

    impl Model {
        fn new(all: [u64; 2]) -> Model {
            let (armed, share, passed) = (AtomicBool::new(false), AtomicU64::new(0), Default::default());
            Model { armed, share, lock: Mutex::new(()), changed: Condvar::new(), passed, all }
        }

        fn pending(&self) -> u64 {
            self.all.iter().zip(&self.passed).map(|(all, passed)| all - passed.load(Ordering::Acquire)).sum()
        }

        /// `Timeline::advance` and `Backpressure::note_passed`, for all instructions of a context. There is no check when the context runs out
        /// of work: its next instruction might be one that does not end before the submitter goes on.
        fn pass(&self, context: usize, fences: Fences) {
            let mut unchecked = 0;
            for seq in 1..=self.all[context] {
                self.passed[context].swap(seq, Ordering::SeqCst);
                if fences.passed {
                    fence(Ordering::SeqCst);
                }
                if self.armed.load(Ordering::SeqCst) {
                    unchecked += 1;
                    if unchecked >= self.share.load(Ordering::SeqCst) {
                        unchecked = 0;
                        self.check(fences);
                    }
                }
            }
        }

        fn check(&self, fences: Fences) {
            let mut published = u64::MAX;
            loop {
                let pending = self.pending();
                if pending == 0 && self.armed.swap(false, Ordering::SeqCst) {
                    drop(self.lock.lock().expect("not poisoned"));
                    self.changed.notify_all();
                }
                let share = super::share(pending, 0, 2);
                if !self.armed.load(Ordering::SeqCst) || published <= share {
                    return;
                }
                self.share.store(share, Ordering::SeqCst);
                published = share;
                if !fences.published {
                    return;
                }
                fence(Ordering::SeqCst);
            }
        }

        /// `Backpressure::wait`.
        fn wait(&self, fences: Fences) {
            let mut guard = self.lock.lock().expect("not poisoned");
            loop {
                self.share.store(0, Ordering::SeqCst);
                self.armed.store(true, Ordering::SeqCst);
                if fences.armed {
                    fence(Ordering::SeqCst);
                }
                if self.pending() == 0 {
                    return;
                }
                guard = self.changed.wait(guard).expect("not poisoned");
            }
        }
    }

    /// A submitter waits until both contexts have passed all their instructions. If its wake-up is lost, it waits for ever, which loom
    /// reports as a deadlock.
    fn never_missed(fences: Fences, all: [u64; 2]) {
        loom::model(move || {
            let model = Arc::new(Model::new(all));
            let contexts = [0, 1].map(|context| {
                let model = model.clone();
                thread::spawn(move || model.pass(context, fences))
            });
            model.wait(fences);
            contexts.into_iter().for_each(|context| context.join().expect("a context does not panic"));
        });
    }

    #[test]
    fn loom_the_last_instruction_to_pass_wakes_the_blocked_submitter() {
        never_missed(ALL, [1, 1]);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_read_of_what_is_pending_before_the_arming_loses_a_wake_up() {
        never_missed(Fences { armed: false, ..ALL }, [1, 1]);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_without_a_fence_neither_of_two_contexts_sees_the_other() {
        never_missed(Fences { passed: false, ..ALL }, [1, 1]);
    }

    /// Enough instructions that a share is more than one.
    const SHARED: [u64; 2] = [2, 3];

    #[test]
    fn loom_the_last_instruction_of_all_shares_wakes_the_blocked_submitter() {
        never_missed(ALL, SHARED);
    }

    /// A context publishes a share computed from before the other context's last instructions passed.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_share_without_a_second_read_loses_a_wake_up() {
        never_missed(Fences { published: false, ..ALL }, SHARED);
    }
}

#[cfg(all(test, loom))]
#[path = "admission_tests.rs"]
mod admission_loom_tests;

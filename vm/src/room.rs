//! Room: bounds on what is pending, and the submitters that wait for it.
//!
//! Above the high mark a submitter blocks; it goes on once what is pending has fallen to the low mark, half of it, so
//! that it is not woken for every instruction. What is pending is read off the timelines, exactly, when it is needed;
//! an instruction that passes costs one load here while nobody is blocked.
//!
//! Submitters that wait are let in **in the order in which they came** ([`Queue`]), and while one waits no caller's thread that comes
//! later is let in: it waits behind it, or is refused if it does not wait. So a list that needs much room waits for what is pending and for those
//! before it in the queue, and for no later submission of another caller. Once what is pending has fallen to the low mark, the first in the queue is let in,
//! and with it as many behind it as fit under the high mark, by the thread that finds that out: mostly one that passes instructions. A submitter that is
//! let in has left the queue, and its room is *granted*: it counts as pending until the list is submitted or given up.
//!
//! Threads of the engine never wait, so they do go ahead, within their overdraft. Once they have submitted as many instructions ahead
//! of the first in the queue as may be pending, it is let in though there is no room. So there may be pending at most the overdraft and
//! one list more.
//!
//! While somebody is blocked, the threads that pass instructions look at what is pending, which takes time that grows with the number of
//! streams. So a look says how many may pass before the next: each thread that passes instructions has a share in those
//! that are too many, and looks when it has passed that. All that are too many cannot pass without a look: that of the
//! thread that was the last to pass its share. A look publishes the share before it reads what is pending for the last
//! time: of it and an instruction that passes meanwhile, one sees the other. When there is one thread more, the share is
//! void, and the thread that passes one looks at once.

use std::collections::VecDeque;
use std::sync::Arc;

use streamvm_instructions::{Deadline, Error};

use crate::shared::Shared;
use crate::stall::Watch;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, fence, unpoisoned};

/// How much may be pending.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// Instructions.
    pub(crate) instructions: u64,
    /// Bytes of new outputs and boxed captures.
    pub(crate) bytes: u64,
}

/// With one core, so many instructions are submitted before the core is given to those who run them: what was just written
/// is then still near, and slots are reused before new ones are taken. Measured on one core, ns, medians of 7 runs in turns,
/// 256 / 512 / 1,024 / 2,048: chain in lists of 64 46.5 / 41.5 / 39.0 / 38.7 and one at a time 65.5 / 60.7 / 58.5 / 58.1, random in
/// lists 78.9 / 73.2 / 70.8 / 70.9, eager additions 206 / 202 / 200 / 200.
const STRIDE: u64 = 1024;

/// What is pending.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) instructions: u64,
    pub(crate) bytes: u64,
}

impl Limits {
    /// Whether `more` instructions may be added. A list that is larger than the bound is let in alone.
    pub(crate) fn admit(&self, pending: Pending, more: u64) -> bool {
        let fits = pending.instructions + more <= self.instructions && pending.bytes < self.bytes;
        fits || pending.instructions == 0
    }

    /// What may be added before the next look at what is pending, given that `more` instructions may. With one core it is at
    /// most [`STRIDE`].
    pub(crate) fn headroom(&self, pending: Pending, more: u64, one_core: bool) -> Pending {
        let free = self.instructions.saturating_sub(pending.instructions);
        Pending {
            instructions: if one_core { free.min(STRIDE) } else { free }.max(more),
            bytes: self.bytes.saturating_sub(pending.bytes),
        }
    }

    /// The low mark in instructions, for a blocked submitter of `more`.
    fn low_instructions(&self, more: u64) -> u64 {
        (self.instructions / 2).min(self.instructions.saturating_sub(more))
    }

    /// Whether a blocked submitter of `more` instructions may go on.
    fn low(&self, pending: Pending, more: u64) -> bool {
        let low = pending.instructions <= self.low_instructions(more) && pending.bytes <= self.bytes / 2;
        low || pending.instructions == 0
    }

    /// The bounds for a thread of the engine, which must not block: as much again.
    pub(crate) fn overdraft(&self) -> Limits {
        Limits { instructions: self.instructions.saturating_mul(2), bytes: self.bytes.saturating_mul(2) }
    }
}

/// What a thread that passes instructions keeps while somebody is blocked.
#[derive(Default)]
pub(crate) struct Looks {
    /// Instructions that it has passed since its last look.
    passed: u64,
}

/// The share of each of so many threads in what is too much: as long as none has passed its share, not all of that has
/// passed.
fn share(pending: u64, low: u64, threads: u64) -> u64 {
    pending.saturating_sub(low) / threads.max(1)
}

/// The submitters that wait for room.
pub(crate) struct Room {
    /// The first that waits has not been told to look again yet.
    armed: AtomicBool,
    /// Above so many pending instructions the first cannot go on, so it is not told.
    low: AtomicU64,
    /// So many instructions of one thread pass from look to look; 0 until there was one.
    share: AtomicU64,
    /// How many wait. Written under the lock.
    blocked: AtomicUsize,
    /// Instructions of submitters that were let in and have not submitted yet. Written under the lock.
    granted: AtomicU64,
    /// Instructions that threads of the engine have submitted since the first in the queue became the first, or a little longer.
    overtaken: AtomicU64,
    queue: Mutex<Queue>,
}

/// Submitters in the order in which they came.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// How many have come so far.
    came: u64,
    /// Of submitters that wait no more, for the next.
    spare: Vec<Arc<Condvar>>,
}

struct Waiting {
    /// Which one it is.
    number: u64,
    /// Instructions that it wants to submit.
    more: u64,
    /// Told when it was let in, and when it is the first and has to look again.
    told: Arc<Condvar>,
}

impl Queue {
    fn push(&mut self, more: u64) -> (u64, Arc<Condvar>) {
        let (number, told) = (self.came, self.spare.pop().unwrap_or_else(|| Arc::new(Condvar::new())));
        self.came += 1;
        self.waiting.push_back(Waiting { number, more, told: told.clone() });
        (number, told)
    }

    /// The place of a submitter; none once it was let in.
    fn place(&self, number: u64) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.number == number)
    }

    fn tell_first(&self) {
        self.waiting.front().into_iter().for_each(|first| first.told.notify_one());
    }
}

/// Room for the list of a submitter that was let in. Dropped once that was submitted, or will not be.
pub(crate) struct Granted<'a> {
    room: &'a Room,
    more: u64,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        let queue = unpoisoned(self.room.queue.lock());
        self.room.granted.fetch_sub(self.more, Ordering::Relaxed);
        // If it was not submitted, nothing passes that would have the first look again.
        queue.tell_first();
    }
}

impl Room {
    pub(crate) fn new() -> Room {
        Room {
            armed: AtomicBool::new(false),
            low: AtomicU64::new(0),
            share: AtomicU64::new(0),
            blocked: AtomicUsize::new(0),
            granted: AtomicU64::new(0),
            overtaken: AtomicU64::new(0),
            queue: Mutex::default(),
        }
    }

    /// How many submitters are blocked.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked.load(Ordering::Acquire)
    }

    /// Instructions of submitters that were let in and may not have submitted yet.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// A thread of the engine submits so many instructions while others wait.
    pub(crate) fn overtake(&self, more: u64) {
        self.overtaken.fetch_add(more, Ordering::Relaxed);
    }

    /// Whether a list of so many instructions waits, which the test alone submits.
    #[cfg(all(test, shuttle))]
    pub(crate) fn waits_for(&self, more: u64) -> bool {
        unpoisoned(self.queue.lock()).waiting.iter().any(|waiting| waiting.more == more)
    }

    /// Has the first in the queue look again, if enough has passed. Called after each instruction has passed.
    #[inline]
    pub(crate) fn announce(&self, vm: &Shared, looks: &mut Looks) {
        // SeqCst against the publication before it and the arming in `wait`: one of the two sees the other.
        if self.armed.load(Ordering::SeqCst) {
            looks.passed += 1;
            if looks.passed >= self.share.load(Ordering::SeqCst) {
                self.look(vm, looks);
            }
        }
    }

    /// Has everyone look at the next instruction that passes: there is one thread more that passes some, or more is asked
    /// for. What makes it so comes before: a look that does not know of it yet publishes its share earlier than this.
    pub(crate) fn void_shares(&self) {
        self.share.store(0, Ordering::SeqCst);
    }

    #[cold]
    fn look(&self, vm: &Shared, looks: &mut Looks) {
        looks.passed = 0;
        let mut published = u64::MAX;
        loop {
            // Of two contexts that pass the last instructions, one sees the other's number too; and one that passes more
            // than its share sees the share, or is seen here.
            fence(Ordering::SeqCst);
            let pending = self.pending(vm);
            let low = self.low.load(Ordering::SeqCst);
            let enough = pending.instructions <= low && pending.bytes <= vm.limits.bytes / 2;
            let due = enough || pending.instructions == 0 || self.is_overtaken(vm);
            if due && self.armed.swap(false, Ordering::SeqCst) {
                // Here, and not by the first once it has woken: what runs out of work meanwhile would wait for it.
                let mut queue = unpoisoned(self.queue.lock());
                self.let_in(&mut queue, vm);
                drop(queue);
                published = u64::MAX;
                continue;
            }
            if !self.armed.load(Ordering::SeqCst) {
                return;
            }
            let share = share(pending.instructions, low, vm.threads.passing());
            if published <= share {
                break;
            }
            self.share.store(share, Ordering::SeqCst);
            published = share;
        }
        // Still blocked, maybe by what others submitted since: that too must be seen to pass.
        vm.demand_all();
    }

    /// Has all that wait look again: the engine is closed.
    pub(crate) fn notify(&self) {
        let queue = unpoisoned(self.queue.lock());
        queue.waiting.iter().for_each(|waiting| waiting.told.notify_one());
    }

    /// What is pending, with what was granted.
    fn pending(&self, vm: &Shared) -> Pending {
        // Before what is pending: what is submitted meanwhile is counted twice, never not at all.
        let granted = self.granted();
        let Pending { instructions, bytes } = vm.pending();
        Pending { instructions: instructions + granted, bytes }
    }

    /// Whether threads of the engine have gone ahead of the first in the queue for long enough.
    fn is_overtaken(&self, vm: &Shared) -> bool {
        self.overtaken.load(Ordering::Relaxed) >= vm.limits.instructions
    }

    /// Blocks until there is room for `more` instructions in `vm`, and nobody waits that came before. The room is granted to the list
    /// then, whatever is submitted meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`] at the deadline, [`Error::Shutdown`] when the engine is closed.
    pub(crate) fn wait(&self, vm: &Shared, more: u64, deadline: Option<Deadline>) -> Result<Granted<'_>, Error> {
        let mut watch = Watch::new(vm);
        let (number, told) = {
            // Under the submission lock: a submission that begins once this one waits looks for room, and finds that it waits.
            let mut state = vm.handle.lock();
            let mut queue = unpoisoned(self.queue.lock());
            if queue.waiting.is_empty() {
                self.overtaken.store(0, Ordering::Relaxed);
            }
            let place = queue.push(more);
            self.blocked.store(queue.waiting.len(), Ordering::Relaxed);
            state.headroom = Pending::default();
            place
        };
        let mut queue = unpoisoned(self.queue.lock());
        loop {
            if queue.place(number) == Some(0) {
                self.let_in(&mut queue, vm);
            }
            let Some(place) = queue.place(number) else {
                queue.spare.push(told);
                return Ok(Granted { room: self, more });
            };
            if place == 0 {
                // A device that runs later completes what somebody asks for, and what was granted has been submitted since. The
                // lock stays: whoever makes room tells the first under it.
                vm.demand_all();
            }
            let over = deadline.filter(Deadline::is_over).map(|deadline| deadline.error());
            let closed = vm.closed.load(Ordering::SeqCst).then_some(Error::Shutdown);
            if let Some(error) = closed.or(over) {
                queue.waiting.remove(place);
                queue.spare.push(told);
                self.blocked.store(queue.waiting.len(), Ordering::Relaxed);
                queue.tell_first();
                return Err(error);
            }
            queue = match watch.nap(deadline) {
                None => unpoisoned(told.wait(queue)),
                Some(nap) => unpoisoned(told.wait_timeout(queue, nap)).0,
            };
            if watch.is_due() {
                drop(queue);
                watch.look(vm);
                queue = unpoisoned(self.queue.lock());
            }
        }
    }

    /// Lets the first in once what is pending is low, and with it as many of those behind it as fit under the high mark: so a submitter is not
    /// blocked again at each of its submissions. The next one is told when to look again. Called by the first, and by threads that pass instructions.
    fn let_in(&self, queue: &mut Queue, vm: &Shared) {
        let limits = vm.limits;
        let mut any = false;
        while let Some(first) = queue.waiting.front() {
            self.low.store(limits.low_instructions(first.more), Ordering::SeqCst);
            self.void_shares();
            self.armed.store(true, Ordering::SeqCst);
            // Orders the store before the looks at the timelines, which are plain loads.
            fence(Ordering::SeqCst);
            let pending = self.pending(vm);
            let fits = if any { limits.admit(pending, first.more) } else { limits.low(pending, first.more) };
            if !fits && !self.is_overtaken(vm) {
                break;
            }
            any = true;
            self.granted.fetch_add(first.more, Ordering::Relaxed);
            self.overtaken.store(0, Ordering::Relaxed);
            first.told.notify_one();
            queue.waiting.pop_front();
        }
        // Behind what was granted: who sees that nobody waits sees that, too.
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
        assert!(limits.admit(at(0, 0), 1_000), "a list larger than the bound is let in alone");
        assert!(!limits.low(at(5, 0), 1));
        assert!(limits.low(at(4, 0), 1));
        assert!(!limits.low(at(4, 51), 1));
        assert!(!limits.low(at(4, 0), 6), "room for the list itself");
        assert!(limits.overdraft().admit(at(9, 0), 2));
    }

    #[test]
    fn with_one_core_a_submitter_looks_and_gives_it_away_every_so_many() {
        let limits = Limits { instructions: 16_384, bytes: 100 };
        let pending = Pending { instructions: 384, bytes: 40 };
        assert_eq!(limits.headroom(pending, 1, false), Pending { instructions: 16_000, bytes: 60 });
        assert_eq!(limits.headroom(pending, 1, true), Pending { instructions: STRIDE, bytes: 60 });
        assert_eq!(limits.headroom(pending, 5_000, true).instructions, 5_000, "a longer list is let in whole");
        let nearly_full = Pending { instructions: 16_380, bytes: 0 };
        assert_eq!(limits.headroom(nearly_full, 1, true).instructions, 4);
    }

    #[test]
    fn not_all_that_are_too_many_pass_before_one_has_passed_its_share() {
        for threads in 1..6 {
            for too_many in 1..40 {
                let share = share(100 + too_many, 100, threads);
                // A thread looks at its share, and at each instruction if that is none.
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

    /// Where the protocol of [`Room`](super::Room) has a fence, or a sequentially consistent access that stands for one:
    /// loom takes such accesses for acquire and release, so the model has the fences that they imply.
    #[derive(Copy, Clone)]
    struct Fences {
        /// Between arming and the look at what is pending.
        armed: bool,
        /// Between two contexts that both pass something, in front of the look of each.
        passed: bool,
        /// No fence: a look at what is pending, behind each that publishes a share.
        published: bool,
    }

    const ALL: Fences = Fences { armed: true, passed: true, published: true };

    struct Model {
        armed: AtomicBool,
        share: AtomicU64,
        lock: Mutex<()>,
        changed: Condvar,
        /// What each of two contexts has passed, of the instructions that it has.
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

        /// `Timeline::advance` and `Room::announce`, for all that a context has. It does not look when it has nothing more
        /// to do: its last instruction may be one that does not end before the submitter goes on.
        fn pass(&self, context: usize, fences: Fences) {
            let mut unlooked = 0;
            for seq in 1..=self.all[context] {
                self.passed[context].swap(seq, Ordering::SeqCst);
                if fences.passed {
                    fence(Ordering::SeqCst);
                }
                if self.armed.load(Ordering::SeqCst) {
                    unlooked += 1;
                    if unlooked >= self.share.load(Ordering::SeqCst) {
                        unlooked = 0;
                        self.look(fences);
                    }
                }
            }
        }

        fn look(&self, fences: Fences) {
            let mut published = u64::MAX;
            loop {
                let pending = self.pending();
                if pending == 0 && self.armed.swap(false, Ordering::SeqCst) {
                    drop(self.lock.lock().expect("nobody panics"));
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

        /// `Room::wait`.
        fn wait(&self, fences: Fences) {
            let mut guard = self.lock.lock().expect("nobody panics");
            loop {
                self.share.store(0, Ordering::SeqCst);
                self.armed.store(true, Ordering::SeqCst);
                if fences.armed {
                    fence(Ordering::SeqCst);
                }
                if self.pending() == 0 {
                    return;
                }
                guard = self.changed.wait(guard).expect("nobody panics");
            }
        }
    }

    /// A submitter waits until both contexts have passed what they had. One that is missed sleeps for ever, which loom
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
    fn loom_a_blocked_submitter_hears_of_the_last_to_pass() {
        never_missed(ALL, [1, 1]);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_submitter_that_looks_unordered_with_its_arming_is_missed() {
        never_missed(Fences { armed: false, ..ALL }, [1, 1]);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_of_two_contexts_that_look_unordered_neither_sees_the_other() {
        never_missed(Fences { passed: false, ..ALL }, [1, 1]);
    }

    /// Enough that a share is more than one.
    const SHARED: [u64; 2] = [2, 3];

    #[test]
    fn loom_a_blocked_submitter_hears_of_the_last_of_all_shares() {
        never_missed(ALL, SHARED);
    }

    /// A context publishes the share of before the other one passed some.
    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_share_that_is_not_looked_at_again_leaves_the_last_to_nobody() {
        never_missed(Fences { published: false, ..ALL }, SHARED);
    }
}

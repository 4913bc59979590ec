//! Loom models of admission: two submitters wait for room, and a context passes what is pending. Beside them are broken variants, each of which
//! must fail.

// Not loom's `Arc`: a deadlock is reported in a thread that holds one, and loom's cannot be dropped after that.
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::{Limits, Pending, Queue, QueuePosition, share};

/// Broken variants of admission.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Mistake {
    None,
    /// What is pending leaves out what was granted and is not submitted yet.
    GrantsDoNotCount,
    /// A check may read a grant that was dropped before, counts its instructions twice, and publishes too large a share.
    RelaxedGrant,
    /// The drop of a grant does not notify the first in the queue.
    SilentGrant,
    /// A submitter that gives up does not notify the first in the queue.
    SilentLeave,
    /// A submitter that wakes is admitted if there is room for it, whatever its position.
    AnyPosition,
}

/// What an admitted submitter does with its grant.
#[derive(Copy, Clone)]
enum Then {
    Submits,
    /// For example because memory is short.
    GivesUp,
}

/// One context that passes instructions, and submitters that wait in the real [`Queue`]. The names are those of
/// [`Backpressure`](super::Backpressure).
struct Model {
    limits: Limits,
    mistake: Mistake,
    armed: AtomicBool,
    low: AtomicU64,
    share: AtomicU64,
    granted: AtomicU64,
    queue: Mutex<Queue>,
    passed: AtomicU64,
    submitted: AtomicU64,
    /// The number that the context may pass, and its wake-up.
    inbox: Mutex<u64>,
    arrived: Condvar,
    /// The submitters in the order of their admission. Not loom's lock, because a note for the judge is no step of the protocol.
    admitted: std::sync::Mutex<Vec<u64>>,
}

impl Model {
    /// `submitted` instructions are pending.
    fn new(limits: u64, submitted: u64, mistake: Mistake) -> Model {
        Model {
            limits: Limits { instructions: limits, bytes: u64::MAX },
            mistake,
            armed: AtomicBool::new(false),
            low: AtomicU64::new(0),
            share: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            queue: Mutex::new(Queue::default()),
            passed: AtomicU64::new(0),
            submitted: AtomicU64::new(submitted),
            inbox: Mutex::new(submitted),
            arrived: Condvar::new(),
            admitted: std::sync::Mutex::default(),
        }
    }

    fn pending(&self) -> Pending {
        let granted = if self.mistake == Mistake::GrantsDoNotCount { 0 } else { self.granted.load(Ordering::SeqCst) };
        let passed = self.passed.load(Ordering::Acquire);
        Pending { instructions: self.submitted.load(Ordering::Acquire) - passed + granted, bytes: 0 }
    }

    /// The context: passes every number up to `last`, once it is submitted.
    fn pass_up_to(&self, last: u64) {
        let mut unchecked = 0;
        for seq in 1..=last {
            let mut inbox = self.inbox.lock().expect("not poisoned");
            while *inbox < seq {
                inbox = self.arrived.wait(inbox).expect("not poisoned");
            }
            drop(inbox);
            self.passed.swap(seq, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.armed.load(Ordering::SeqCst) {
                unchecked += 1;
                if unchecked >= self.share.load(Ordering::SeqCst) {
                    unchecked = 0;
                    self.check();
                }
            }
        }
    }

    /// `Backpressure::check`.
    fn check(&self) {
        let mut published = u64::MAX;
        loop {
            fence(Ordering::SeqCst);
            let pending = self.pending();
            let low = self.low.load(Ordering::SeqCst);
            if pending.instructions <= low && self.armed.swap(false, Ordering::SeqCst) {
                self.admit_waiting(&mut self.queue.lock().expect("not poisoned"));
                published = u64::MAX;
                continue;
            }
            let share = share(pending.instructions, low, 1);
            if !self.armed.load(Ordering::SeqCst) || published <= share {
                return;
            }
            self.share.store(share, Ordering::SeqCst);
            published = share;
        }
    }

    /// `Backpressure::admit_waiting`.
    fn admit_waiting(&self, queue: &mut Queue) {
        let mut any = false;
        while let Some(first) = queue.waiting.front() {
            self.low.store(self.limits.low_instructions(first.more), Ordering::SeqCst);
            self.share.store(0, Ordering::SeqCst);
            self.armed.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let pending = self.pending();
            let fits = if any { self.limits.admit(pending, first.more) } else { self.limits.low(pending, first.more) };
            if !fits {
                return;
            }
            any = true;
            self.grant(first.number, first.more);
            first.admitted.notify_one();
            queue.waiting.pop_front();
        }
        self.armed.store(false, Ordering::SeqCst);
    }

    fn grant(&self, number: u64, more: u64) {
        self.granted.fetch_add(more, Ordering::SeqCst);
        self.admitted.lock().expect("not poisoned").push(number);
    }

    fn enqueue(&self, more: u64) -> QueuePosition {
        let (number, admitted) = self.queue.lock().expect("not poisoned").push(more);
        QueuePosition { number, admitted, more }
    }

    /// `Backpressure::wait`, the submission, and the drop of the grant.
    fn wait(&self, position: QueuePosition, then: Then) {
        let QueuePosition { number, admitted, more } = position;
        let mut queue = self.queue.lock().expect("not poisoned");
        while let Some(position) = queue.position(number) {
            if position == 0 {
                self.admit_waiting(&mut queue);
            } else if self.mistake == Mistake::AnyPosition && self.limits.low(self.pending(), more) {
                self.grant(number, more);
                queue.waiting.remove(position);
            }
            if queue.position(number).is_some() {
                queue = admitted.wait(queue).expect("not poisoned");
            }
        }
        drop(queue);
        if let Then::Submits = then {
            self.submit(more);
        }
        let queue = self.queue.lock().expect("not poisoned");
        self.granted.fetch_sub(more, Ordering::SeqCst);
        if self.mistake != Mistake::RelaxedGrant {
            // Loom treats sequentially consistent accesses as acquire and release only: this stands for the rest.
            fence(Ordering::SeqCst);
        }
        if self.mistake != Mistake::SilentGrant {
            queue.notify_first();
        }
    }

    fn submit(&self, more: u64) {
        let mut inbox = self.inbox.lock().expect("not poisoned");
        *inbox += more;
        self.submitted.store(*inbox, Ordering::Release);
        let pending = *inbox - self.passed.load(Ordering::Acquire);
        assert!(pending <= self.limits.instructions, "room was given twice");
        self.arrived.notify_one();
    }

    /// `Backpressure::wait` of a submitter whose deadline passes while it waits.
    fn wait_and_leave(&self, position: QueuePosition) {
        let mut queue = self.queue.lock().expect("not poisoned");
        if queue.position(position.number) == Some(0) {
            self.admit_waiting(&mut queue);
        }
        let at = queue.position(position.number).expect("there is no room for it");
        queue.waiting.remove(at);
        if queue.waiting.is_empty() {
            self.armed.store(false, Ordering::SeqCst);
        }
        if self.mistake != Mistake::SilentLeave {
            queue.notify_first();
        }
    }
}

/// The bound is one instruction, and one is pending. Two submitters of one instruction each have queued, and wait at the same time as
/// a context passes what is pending, and what they submit. A submitter that is lost is a deadlock, which loom reports.
fn two_wait(mistake: Mistake, first: Then) {
    loom::model(move || {
        let model = Arc::new(Model::new(1, 1, mistake));
        let submitters = [first, Then::Submits].map(|then| (model.enqueue(1), then)).map(|(position, then)| {
            let model = model.clone();
            thread::spawn(move || model.wait(position, then))
        });
        let submitted = if let Then::Submits = first { 2 } else { 1 };
        model.pass_up_to(1 + submitted);
        submitters.into_iter().for_each(|submitter| submitter.join().expect("a submitter does not panic"));
        assert_eq!(*model.admitted.lock().expect("not poisoned"), [0, 1], "admitted out of order");
        assert_eq!(model.granted.load(Ordering::SeqCst), 0);
    });
}

/// Two of at most four instructions are pending, and one of them passes. The first in the queue wants all four, and gives up; the
/// second wants one, for which there is room.
fn the_first_leaves(mistake: Mistake) {
    loom::model(move || {
        let model = Arc::new(Model::new(4, 2, mistake));
        let (first, second) = (model.enqueue(4), model.enqueue(1));
        let [leaving, waiting] = [model.clone(), model.clone()];
        let leaving = thread::spawn(move || leaving.wait_and_leave(first));
        let waiting = thread::spawn(move || waiting.wait(second, Then::Submits));
        model.pass_up_to(1);
        [leaving, waiting].into_iter().for_each(|thread| thread.join().expect("a submitter does not panic"));
        assert_eq!(*model.admitted.lock().expect("not poisoned"), [1]);
    });
}

#[test]
fn loom_of_two_blocked_submitters_each_is_admitted_once_in_order() {
    two_wait(Mistake::None, Then::Submits);
}

#[test]
fn loom_a_grant_that_is_given_up_admits_the_next_submitter() {
    two_wait(Mistake::None, Then::GivesUp);
}

#[test]
fn loom_the_next_submitter_goes_on_when_the_first_leaves() {
    the_first_leaves(Mistake::None);
}

#[test]
#[should_panic(expected = "room was given twice")]
fn loom_grants_that_do_not_count_admit_two_submitters_to_one_room() {
    two_wait(Mistake::GrantsDoNotCount, Then::Submits);
}

/// The second submitter has stored a share of 0, and the context replaces it with one that counts the first submitter's instruction twice.
#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_check_that_reads_a_dropped_grant_loses_the_next_submitter() {
    two_wait(Mistake::RelaxedGrant, Then::Submits);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_grant_that_is_dropped_silently_loses_the_next_submitter() {
    two_wait(Mistake::SilentGrant, Then::Submits);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_submitter_that_leaves_silently_loses_the_next_one() {
    the_first_leaves(Mistake::SilentLeave);
}

#[test]
#[should_panic(expected = "admitted out of order")]
fn loom_a_submitter_that_does_not_look_at_its_position_overtakes() {
    two_wait(Mistake::AnyPosition, Then::Submits);
}

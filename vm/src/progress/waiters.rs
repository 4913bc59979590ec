//! The waiters of an ordered stream: threads and callbacks to wake when the stream has reached a number.
//!
//! Each stream has one tree of waiters, ordered by number, behind a lock: there may be very many, and they come and give up in any order. Only
//! waiters take that lock, and a runner that has a waiter to wake. The timeline's `wanted` is the lowest number in the tree and is updated under
//! that lock; [`Timeline`] explains why no waiter is missed.
//!
//! A callback that is dropped runs code of the caller. So a waiter is dropped, as it is woken, after the lock is left.

use std::sync::Arc;

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};
use smallvec::SmallVec;
use streamvm_stream::Timeline;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::dependence_node::NodeId;
use crate::dispatch::strand::Strand;
use crate::progress::callbacks::Callbacks;
use crate::progress::stream_state::StreamState;
use crate::sync::parker::Parker;
use crate::sync::{Mutex, Thread, unpoisoned};

/// What to do once a number has passed.
pub(crate) enum Wake {
    /// Unpark a caller's thread.
    Thread(Thread),
    /// Wake an engine thread.
    Parker(Arc<Parker>),
    /// Queue a strand whose head waits for it.
    Strand(Arc<ContextHandle>),
    /// Satisfy one dependence of an instruction of an unordered stream.
    Met(Arc<StreamState>, NodeId),
    /// Run a callback on the callback thread.
    Callback(Arc<Callbacks>, Box<dyn FnOnce() + Send>),
}

impl Wake {
    pub(crate) fn wake(self) {
        match self {
            Wake::Thread(thread) => thread.unpark(),
            Wake::Parker(parker) => parker.wake(),
            Wake::Strand(context) => context.as_strand().into_iter().for_each(Strand::unblock),
            Wake::Met(stream_state, id) => {
                stream_state.unordered().into_iter().for_each(|unordered| unordered.satisfy(id))
            }
            Wake::Callback(callbacks, callback) => callbacks.run(callback),
        }
    }
}

struct Waiter {
    link: RBTreeLink,
    seq: u64,
    id: u64,
    wake: Wake,
}

#[allow(unsafe_code, reason = "written by the macro, which checks that the field is the link")]
mod adapter {
    use super::{RBTreeLink, Waiter, intrusive_adapter};
    intrusive_adapter!(pub(super) ByNumber = Box<Waiter>: Waiter { link => RBTreeLink });
}
use adapter::ByNumber;

impl KeyAdapter<'_> for ByNumber {
    type Key = (u64, u64);

    fn get_key(&self, waiter: &Waiter) -> (u64, u64) {
        (waiter.seq, waiter.id)
    }
}

/// The waiters of one stream, of any kind, in the order of their numbers; those of one number in the order of arrival.
#[derive(Default)]
pub(crate) struct WaiterTree {
    waiters: RBTree<ByNumber>,
    next_id: u64,
}

impl WaiterTree {
    /// Adds a waiter for `seq`, and returns its id.
    pub(crate) fn add(&mut self, seq: u64, wake: Wake) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.waiters.insert(Box::new(Waiter { link: RBTreeLink::new(), seq, id, wake }));
        id
    }

    /// Takes out the waiter for `seq` with this id, if it is there. The caller drops it without the lock.
    #[must_use]
    pub(crate) fn take(&mut self, seq: u64, id: u64) -> Option<Wake> {
        self.waiters.find_mut(&(seq, id)).remove().map(|waiter| waiter.wake)
    }

    /// Takes out all waiters for the numbers from `first` to `last`.
    #[must_use]
    pub(crate) fn take_all(&mut self, first: u64, last: u64) -> SmallVec<[Wake; 2]> {
        let mut taken = SmallVec::new();
        let mut next = self.waiters.lower_bound_mut(Bound::Included(&(first, 0)));
        while next.get().is_some_and(|waiter| waiter.seq <= last) {
            taken.extend(next.remove().map(|waiter| waiter.wake));
        }
        taken
    }

    fn lowest(&self) -> Option<u64> {
        self.waiters.front().get().map(|waiter| waiter.seq)
    }

    /// How many waiters there are. Counts them.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn len(&self) -> usize {
        self.waiters.iter().count()
    }
}

/// The waiters of one ordered stream.
pub(crate) struct Waiters {
    tree: Mutex<WaiterTree>,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters { tree: Mutex::default() }
    }

    /// Adds a waiter for `seq`, and returns its id.
    ///
    /// # Errors
    /// Gives `wake` back if `seq` has passed.
    pub(crate) fn add(&self, timeline: &Timeline, seq: u64, wake: Wake) -> Result<u64, Wake> {
        let mut tree = unpoisoned(self.tree.lock());
        if timeline.passed() >= seq {
            return Err(wake);
        }
        let id = tree.add(seq, wake);
        if timeline.want(tree.lowest()) < seq {
            return Ok(id);
        }
        // It passed between the check and the announcement, so its runner may not wake this waiter.
        Self::take(&mut tree, timeline, seq, id).map_or(Ok(id), Err)
    }

    /// Removes a waiter for `seq` that gave up.
    pub(crate) fn remove(&self, timeline: &Timeline, seq: u64, id: u64) {
        let mut tree = unpoisoned(self.tree.lock());
        let gone = Self::take(&mut tree, timeline, seq, id);
        drop(tree);
        drop(gone);
    }

    #[must_use]
    fn take(tree: &mut WaiterTree, timeline: &Timeline, seq: u64, id: u64) -> Option<Wake> {
        let wake = tree.take(seq, id)?;
        let _ = timeline.want(tree.lowest());
        Some(wake)
    }

    /// Wakes all waiters whose number is at most `passed`. Their wakes run without the lock.
    pub(crate) fn wake(&self, timeline: &Timeline, passed: u64) {
        let woken = {
            let mut tree = unpoisoned(self.tree.lock());
            let woken = tree.take_all(0, passed);
            let _ = timeline.want(tree.lowest());
            woken
        };
        woken.into_iter().for_each(Wake::wake);
    }

    /// How many waiters there are. Counts them.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn len(&self) -> usize {
        unpoisoned(self.tree.lock()).len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn me() -> Wake {
        Wake::Thread(crate::sync::current())
    }

    fn numbers(waiters: &Waiters) -> Vec<u64> {
        unpoisoned(waiters.tree.lock()).waiters.iter().map(|waiter| waiter.seq).collect()
    }

    #[test]
    fn waiters_are_kept_in_order_of_their_numbers() {
        let (timeline, waiters) = (Timeline::new(), Waiters::new());
        for seq in [5, 2, 9, 5, 1] {
            assert!(waiters.add(&timeline, seq, me()).is_ok());
        }
        assert_eq!(numbers(&waiters), [1, 2, 5, 5, 9]);
        assert!(!timeline.advance(0));
        assert!(timeline.advance(4), "1 and 2 sleep");
        waiters.wake(&timeline, 4);
        assert_eq!(numbers(&waiters), [5, 5, 9]);
        assert!(timeline.advance(5));
    }

    #[test]
    fn a_point_that_has_passed_takes_no_waiter() {
        let (timeline, waiters) = (Timeline::new(), Waiters::new());
        assert!(!timeline.advance(3));
        assert!(waiters.add(&timeline, 3, me()).is_err());
        assert!(waiters.add(&timeline, 4, me()).is_ok());
        assert_eq!(numbers(&waiters), [4]);
    }

    #[test]
    fn one_that_gives_up_is_removed() {
        let (timeline, waiters) = (Timeline::new(), Waiters::new());
        let ids: Vec<u64> = [3, 4].map(|seq| waiters.add(&timeline, seq, me()).ok().expect("not passed")).to_vec();
        waiters.remove(&timeline, 3, ids[0]);
        assert_eq!(numbers(&waiters), [4]);
        assert!(!timeline.advance(3), "no waiter for 3 is left");
        assert!(timeline.advance(4));
    }

    #[test]
    fn of_two_waiters_for_one_number_the_one_that_gives_up_is_removed() {
        for gone in [0, 1] {
            let (timeline, waiters) = (Timeline::new(), Waiters::new());
            let ids = [3, 3].map(|seq| waiters.add(&timeline, seq, me()).ok().expect("not passed"));
            waiters.remove(&timeline, 3, ids[gone]);
            assert_eq!(numbers(&waiters), [3]);
            waiters.remove(&timeline, 3, ids[1 - gone]);
            assert_eq!(numbers(&waiters), [0; 0], "the other one was left");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;

    type Pass = fn(&Timeline, &Waiters, u64);

    fn pass(timeline: &Timeline, waiters: &Waiters, seq: u64) {
        if timeline.advance(seq) {
            waiters.wake(timeline, seq);
        }
    }

    /// Two waiters park for numbers 1 and 2, one of which may give up, while a runner passes both by `pass`.
    fn never_missed(pass: Pass, gives_up: bool) {
        loom::model(move || {
            let shared = Arc::new((Timeline::new(), Waiters::new()));
            let runner = {
                let shared = shared.clone();
                thread::spawn(move || {
                    pass(&shared.0, &shared.1, 1);
                    pass(&shared.0, &shared.1, 2);
                })
            };
            let (timeline, waiters) = &*shared;
            let idle_set = [1, 2].map(|seq| {
                let parker = Arc::new(Parker::new());
                parker.prepare_park();
                let added = waiters.add(timeline, seq, Wake::Parker(parker.clone()));
                (parker, added.ok())
            });
            if gives_up && let Some(id) = idle_set[0].1 {
                waiters.remove(timeline, 1, id);
            }
            runner.join().expect("the runner does not panic");
            let asleep = |index: usize| idle_set[index].1.is_some() && idle_set[index].0.is_parked();
            assert!((gives_up || !asleep(0)) && !asleep(1), "a sleeper was not woken");
            assert!(unpoisoned(waiters.tree.lock()).waiters.is_empty(), "a waiter was left behind");
        });
    }

    #[test]
    fn loom_a_parked_waiter_is_woken_for_its_number() {
        never_missed(pass, false);
    }

    #[test]
    fn loom_a_waiter_that_gives_up_takes_no_wake_up_of_another() {
        never_missed(pass, true);
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_runner_that_checks_before_it_publishes_misses_a_waiter() {
        never_missed(
            |timeline, waiters, seq| {
                waiters.wake(timeline, seq);
                let _ = timeline.advance(seq);
            },
            false,
        );
    }
}

//! Two ways into a thread context: a ring for what one submission sends alone, and the inbox for everything else.
//!
//! What is put into the ring costs no exchange, but waits for nobody: so that no instruction of a stream gets ahead of one that was sent
//! before it, the ring is used only while the context has taken all that was put into the inbox. What lies in both at once is then older in
//! the ring.
//!
//! * Whoever puts something into the inbox counts it before, and who sends later instructions of the same stream sees that count: it had the
//!   submission lock later, or saw that the scheduler had dispatched.
//! * The context takes the inbox first, then all that is in the ring, and only then says that it has. So a submitter that goes on with
//!   the ring puts nothing into it that this look might still find in front of what came from the inbox.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::inbox::Inbox;
use crate::ring::{Drain, Feed, Ring, ring};
use crate::slot::Chain;
use crate::sync::{AtomicU64, Mutex, Ordering, unpoisoned};

/// The ring of a context, and what tells whether it may be used.
pub(crate) struct Intake<T> {
    ring: Arc<Ring<T>>,
    /// Slots put into the inbox.
    sent: CachePadded<AtomicU64>,
    /// How many of them were taken out of it. Written by the taker alone.
    taken: CachePadded<AtomicU64>,
    feed: Mutex<Option<Feed<T>>>,
    drain: Mutex<Option<Drain<T>>>,
}

impl<T> Intake<T> {
    /// With a ring of so many places, a power of two.
    pub(crate) fn new(places: usize) -> Intake<T> {
        let (feed, drain) = ring(places);
        Intake {
            ring: drain.ring().clone(),
            sent: CachePadded::default(),
            taken: CachePadded::default(),
            feed: Mutex::new(Some(feed)),
            drain: Mutex::new(Some(drain)),
        }
    }

    /// The end where slots go in, for the first who asks.
    pub(crate) fn feed(&self) -> Option<Feed<T>> {
        unpoisoned(self.feed.lock()).take()
    }

    /// The end where they come out, for the first who asks.
    pub(crate) fn drain(&self) -> Option<Drain<T>> {
        unpoisoned(self.drain.lock()).take()
    }

    /// Whether there seems to be nothing in the ring: a cheap look.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// So many slots are about to be put into the inbox.
    #[inline]
    pub(crate) fn others_are_sent(&self, count: usize) {
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Whether what goes into the ring now comes behind all that was put into the inbox before.
    #[inline]
    pub(crate) fn are_next(&self) -> bool {
        self.taken.load(Ordering::Acquire) == self.sent.load(Ordering::Relaxed)
    }

    /// Takes all that came both ways, in an order that keeps that of each stream.
    #[inline]
    pub(crate) fn take(&self, drain: &mut Drain<T>, inbox: &Inbox<T>) -> Chain<T> {
        let mut others = inbox.take();
        let mut all = Chain::new();
        drain.take(&mut all);
        if !others.is_empty() {
            let taken = self.taken.load(Ordering::Relaxed) + others.len() as u64;
            self.taken.store(taken, Ordering::Release);
            all.append(&mut others);
        }
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slot::Slot;

    /// Sends numbers both ways, `true` as a batch, and takes where it says so.
    fn through(steps: &[(u32, bool)], takes: &[usize]) -> Vec<u32> {
        let (intake, inbox) = (Intake::new(4), Inbox::new());
        let (mut feed, mut drain) = (intake.feed().expect("the first who asks"), intake.drain().expect("likewise"));
        let mut seen = Vec::new();
        let mut look = || {
            let mut all = intake.take(&mut drain, &inbox);
            seen.extend(std::iter::from_fn(|| all.pop().map(|slot| *slot)));
        };
        for (step, (value, batch)) in steps.iter().enumerate() {
            let slot = Slot::new(*value);
            let left = if !batch && intake.are_next() { feed.put(slot).err() } else { Some(slot) };
            if let Some(slot) = left {
                intake.others_are_sent(1);
                inbox.push_one(slot);
            }
            if takes.contains(&step) {
                look();
            }
        }
        look();
        seen
    }

    #[test]
    fn what_comes_both_ways_comes_in_order() {
        // More singles than there are places, batches between them, and singles behind a batch that was taken or was not.
        let steps: Vec<(u32, bool)> = (0..24).map(|value| (value, value % 7 == 5)).collect();
        for first in 0..steps.len() {
            for second in first..steps.len() {
                assert_eq!(through(&steps, &[first, second]), (0..24).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn each_end_is_given_once() {
        let intake = Intake::<u32>::new(1);
        assert!(intake.feed().is_some() && intake.feed().is_none());
        assert!(intake.drain().is_some() && intake.drain().is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::slot::Slot;

    type Shared = (Intake<u32>, Inbox<u32>);

    /// A submitter sends 1 through the ring, 2 through the inbox, and 3 through the ring if it may, while a context takes by `take`.
    fn order_is_kept(take: fn(&Shared, &mut Drain<u32>) -> Chain<u32>) {
        loom::model(move || {
            let shared: Arc<Shared> = Arc::new((Intake::new(2), Inbox::new()));
            let mut drain = shared.0.drain().expect("the first who asks");
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (intake, inbox) = &*shared;
                    let mut feed = intake.feed().expect("the first who asks");
                    assert!(intake.are_next() && feed.put(Slot::new(1)).is_ok());
                    intake.others_are_sent(1);
                    inbox.push_one(Slot::new(2));
                    thread::yield_now();
                    if intake.are_next() {
                        assert!(feed.put(Slot::new(3)).is_ok());
                    } else {
                        intake.others_are_sent(1);
                        inbox.push_one(Slot::new(3));
                    }
                })
            };
            let mut seen = Vec::new();
            let mut look = |drain: &mut Drain<u32>| {
                let mut all = take(&shared, drain);
                seen.extend(std::iter::from_fn(|| all.pop().map(|slot| *slot)));
            };
            thread::yield_now();
            look(&mut drain);
            submitter.join().expect("the submitter does not panic");
            look(&mut drain);
            assert_eq!(seen, [1, 2, 3], "the order of the stream");
        });
    }

    #[test]
    fn loom_what_comes_both_ways_keeps_its_order() {
        order_is_kept(|(intake, inbox), drain| intake.take(drain, inbox));
    }

    #[test]
    #[should_panic(expected = "the order of the stream")]
    fn loom_a_ring_that_is_taken_before_the_inbox_is_overtaken() {
        order_is_kept(|(intake, inbox), drain| {
            let mut all = Chain::new();
            drain.take(&mut all);
            thread::yield_now();
            let mut others = inbox.take();
            intake.taken.fetch_add(others.len() as u64, Ordering::Release);
            all.append(&mut others);
            all
        });
    }

    #[test]
    #[should_panic(expected = "the order of the stream")]
    fn loom_a_context_that_says_too_early_what_it_took_is_overtaken() {
        order_is_kept(|(intake, inbox), drain| {
            let mut others = inbox.take();
            intake.taken.fetch_add(others.len() as u64, Ordering::Release);
            thread::yield_now();
            let mut all = Chain::new();
            drain.take(&mut all);
            all.append(&mut others);
            all
        });
    }
}

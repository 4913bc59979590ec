//! A ring and an inbox that lead to the same thread context, with the order of each stream kept between them.
//!
//! The ring takes single tasks of submitters and costs no atomic exchange; the inbox takes everything else. A task in the ring
//! could overtake an earlier task of its stream that is still in the inbox. So the ring is used only while the context has taken
//! all that was put into the inbox. If both hold tasks, those in the ring are therefore the older ones.
//!
//! * A thread that puts tasks into the inbox counts them in `sent` before. A thread that sends later instructions of the same
//!   stream sees that count: it took the submission lock later, or it saw that the scheduler had dispatched.
//! * The context takes the inbox first, then all of the ring, and only then raises `taken`. So while a context takes, a submitter
//!   puts no task into the ring that belongs behind those just taken from the inbox.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::queue::mpsc::MpscQueue;
use crate::queue::node::NodeList;
use crate::queue::spsc::{Consumer, Producer, SpscRing, ring};
use crate::sync::{AtomicU64, Mutex, Ordering, unpoisoned};

/// The ring of a context, and the counts that tell whether the ring may be used.
pub(crate) struct Mailbox<T> {
    ring: Arc<SpscRing<T>>,
    /// Number of node boxes put into the inbox.
    sent: CachePadded<AtomicU64>,
    /// Number of node boxes taken out of the inbox. Only the consumer writes it.
    taken: CachePadded<AtomicU64>,
    producer: Mutex<Option<Producer<T>>>,
    consumer: Mutex<Option<Consumer<T>>>,
}

impl<T> Mailbox<T> {
    /// A mailbox whose ring has `places` places, a power of two.
    pub(crate) fn new(places: usize) -> Mailbox<T> {
        let (producer, consumer) = ring(places);
        Mailbox {
            ring: consumer.ring().clone(),
            sent: CachePadded::default(),
            taken: CachePadded::default(),
            producer: Mutex::new(Some(producer)),
            consumer: Mutex::new(Some(consumer)),
        }
    }

    /// The producing end of the ring; `None` if it was given out before.
    pub(crate) fn producer(&self) -> Option<Producer<T>> {
        unpoisoned(self.producer.lock()).take()
    }

    /// The consuming end of the ring; `None` if it was given out before.
    pub(crate) fn consumer(&self) -> Option<Consumer<T>> {
        unpoisoned(self.consumer.lock()).take()
    }

    /// Whether the ring seems empty. A hint: relaxed loads.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Counts node boxes that the caller is about to put into the inbox.
    #[inline]
    pub(crate) fn others_are_sent(&self, count: usize) {
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Whether a task put into the ring now comes after all that was put into the inbox before.
    #[inline]
    pub(crate) fn are_next(&self) -> bool {
        self.taken.load(Ordering::Acquire) == self.sent.load(Ordering::Relaxed)
    }

    /// Takes all that is in the ring and the inbox, in an order that keeps the order of each stream.
    #[inline]
    pub(crate) fn take(&self, consumer: &mut Consumer<T>, inbox: &MpscQueue<T>) -> NodeList<T> {
        let mut others = inbox.take();
        let mut all = NodeList::new();
        consumer.take(&mut all);
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
    use crate::queue::node::NodeBox;

    /// Sends numbers, `true` through the inbox and `false` through the ring if allowed, and takes after the steps in `takes`.
    fn through(steps: &[(u32, bool)], takes: &[usize]) -> Vec<u32> {
        let (mailbox, inbox) = (Mailbox::new(4), MpscQueue::new());
        let (mut producer, mut consumer) =
            (mailbox.producer().expect("not given out"), mailbox.consumer().expect("likewise"));
        let mut seen = Vec::new();
        let mut look = || {
            let mut all = mailbox.take(&mut consumer, &inbox);
            seen.extend(std::iter::from_fn(|| all.pop().map(|boxed| *boxed)));
        };
        for (step, (value, batch)) in steps.iter().enumerate() {
            let boxed = NodeBox::new(*value);
            let left = if !batch && mailbox.are_next() { producer.put(boxed).err() } else { Some(boxed) };
            if let Some(boxed) = left {
                mailbox.others_are_sent(1);
                inbox.push_one(boxed);
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
        // More single tasks than the ring has places, batches between them, and single tasks behind a batch that was taken or was
        // not.
        let steps: Vec<(u32, bool)> = (0..24).map(|value| (value, value % 7 == 5)).collect();
        for first in 0..steps.len() {
            for second in first..steps.len() {
                assert_eq!(through(&steps, &[first, second]), (0..24).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn each_end_is_given_once() {
        let mailbox = Mailbox::<u32>::new(1);
        assert!(mailbox.producer().is_some() && mailbox.producer().is_none());
        assert!(mailbox.consumer().is_some() && mailbox.consumer().is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::queue::node::NodeBox;

    type Shared = (Mailbox<u32>, MpscQueue<u32>);

    /// A submitter sends 1 through the ring, 2 through the inbox, and 3 through the ring if allowed, while a context takes by
    /// `take`.
    fn order_is_kept(take: fn(&Shared, &mut Consumer<u32>) -> NodeList<u32>) {
        loom::model(move || {
            let shared: Arc<Shared> = Arc::new((Mailbox::new(2), MpscQueue::new()));
            let mut consumer = shared.0.consumer().expect("not given out");
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (mailbox, inbox) = &*shared;
                    let mut producer = mailbox.producer().expect("not given out");
                    assert!(mailbox.are_next() && producer.put(NodeBox::new(1)).is_ok());
                    mailbox.others_are_sent(1);
                    inbox.push_one(NodeBox::new(2));
                    thread::yield_now();
                    if mailbox.are_next() {
                        assert!(producer.put(NodeBox::new(3)).is_ok());
                    } else {
                        mailbox.others_are_sent(1);
                        inbox.push_one(NodeBox::new(3));
                    }
                })
            };
            let mut seen = Vec::new();
            let mut look = |consumer: &mut Consumer<u32>| {
                let mut all = take(&shared, consumer);
                seen.extend(std::iter::from_fn(|| all.pop().map(|boxed| *boxed)));
            };
            thread::yield_now();
            look(&mut consumer);
            submitter.join().expect("the submitter does not panic");
            look(&mut consumer);
            assert_eq!(seen, [1, 2, 3], "the order of the stream");
        });
    }

    #[test]
    fn loom_what_comes_both_ways_keeps_its_order() {
        order_is_kept(|(mailbox, inbox), consumer| mailbox.take(consumer, inbox));
    }

    #[test]
    #[should_panic(expected = "the order of the stream")]
    fn loom_a_ring_that_is_taken_before_the_inbox_is_overtaken() {
        order_is_kept(|(mailbox, inbox), consumer| {
            let mut all = NodeList::new();
            consumer.take(&mut all);
            thread::yield_now();
            let mut others = inbox.take();
            mailbox.taken.fetch_add(others.len() as u64, Ordering::Release);
            all.append(&mut others);
            all
        });
    }

    #[test]
    #[should_panic(expected = "the order of the stream")]
    fn loom_a_context_that_says_too_early_what_it_took_is_overtaken() {
        order_is_kept(|(mailbox, inbox), consumer| {
            let mut others = inbox.take();
            mailbox.taken.fetch_add(others.len() as u64, Ordering::Release);
            thread::yield_now();
            let mut all = NodeList::new();
            consumer.take(&mut all);
            all.append(&mut others);
            all
        });
    }
}

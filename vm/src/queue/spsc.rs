//! An SPSC ring: single node boxes from the submitter to one thread context.
//!
//! Algorithm: FastForward (Giacomoni, Moseley, Vachharajani, PPoPP 2008). A null place is free, any other is full, so the two ends
//! share no index. Handing a node box over costs a load and a store of one word, eight of which share a cache line. The consumer
//! sees the addresses of the following node boxes in the places ahead, and prefetches them.
//!
//! * At any time one thread holds the [`Producer`] and one the [`Consumer`].
//! * The producer fills a place by a release store, and the consumer empties it after an acquire load, so the consumer sees all
//!   writes made before.
//! * A plain store is not ordered with later loads, so parking needs more than the ring: the producer's thread holds a lock, and
//!   the consumer checks once more under that lock ([`Context::prepare_park`](crate::execute::context::Context::prepare_park)).

#![allow(unsafe_code, reason = "owns nodes through raw pointers while they are in the ring")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::queue::node::{LINES, Node, NodeBox, NodeList, prefetch};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// How many places ahead nodes are prefetched while they are taken: about as long as a cache line takes from core to core.
const AHEAD: usize = 8;

/// Places in a cache line.
const PER_LINE: usize = 8;

/// The places of a ring, as a thread that only polls sees them.
pub(crate) struct SpscRing<T> {
    /// Null where free. Their number is a power of two.
    places: Box<[AtomicPtr<Node<T>>]>,
    /// The place that is taken next, counted without wrapping to the length. Written by the consumer alone.
    next: CachePadded<AtomicUsize>,
    owns: PhantomData<Box<Node<T>>>,
}

// SAFETY: a shared ring moves values from thread to thread and gives out no reference to them, so `T: Send` suffices.
unsafe impl<T: Send> Sync for SpscRing<T> {}
// SAFETY: the ring owns its nodes, whose values are `Send`.
unsafe impl<T: Send> Send for SpscRing<T> {}

/// The end where node boxes go in.
pub(crate) struct Producer<T> {
    ring: Arc<SpscRing<T>>,
    /// The place that is filled next, counted without wrapping to the length.
    next: usize,
}

/// The end where node boxes come out.
pub(crate) struct Consumer<T> {
    ring: Arc<SpscRing<T>>,
    next: usize,
}

/// The two ends of a ring with `places` places, a power of two.
pub(crate) fn ring<T>(places: usize) -> (Producer<T>, Consumer<T>) {
    debug_assert!(places.is_power_of_two(), "places are found by a mask");
    let places = (0..places).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
    let ring = Arc::new(SpscRing { places, next: CachePadded::default(), owns: PhantomData });
    (Producer { ring: ring.clone(), next: 0 }, Consumer { ring, next: 0 })
}

impl<T> SpscRing<T> {
    #[inline]
    fn place(&self, number: usize) -> &AtomicPtr<Node<T>> {
        &self.places[number & (self.places.len() - 1)]
    }

    /// Whether the ring seems empty. A hint: relaxed loads.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.place(self.next.load(Ordering::Relaxed)).load(Ordering::Relaxed).is_null()
    }
}

impl<T> Producer<T> {
    /// Puts a node box in. Gives it back if the ring is full.
    #[inline]
    pub(crate) fn put(&mut self, boxed: NodeBox<T>) -> Result<(), NodeBox<T>> {
        let place = self.ring.place(self.next);
        if !place.load(Ordering::Relaxed).is_null() {
            return Err(boxed);
        }
        place.store(boxed.into_raw(), Ordering::Release);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Prefetches the cache line of the next place, which the consumer writes to when it has caught up, and the line after it,
    /// which the consumer wrote to one round ago.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for next in [self.next, self.next.wrapping_add(PER_LINE)] {
            prefetch(ptr::from_ref(self.ring.place(next)).addr(), 1);
        }
    }
}

impl<T> Consumer<T> {
    /// The ring, to poll.
    pub(crate) fn ring(&self) -> &Arc<SpscRing<T>> {
        &self.ring
    }

    /// Appends all node boxes in the ring to `chain`, oldest first: all that were put in before this call, and possibly some that
    /// are put in meanwhile.
    #[inline]
    pub(crate) fn take(&mut self, chain: &mut NodeList<T>) {
        let ring = &*self.ring;
        // The last place whose node was prefetched. Prefetching stops at a free place: the producer is about to write there.
        let mut asked = self.next.wrapping_sub(1);
        // At most one round, because a producer that keeps putting would make the loop endless.
        for _ in 0..ring.places.len() {
            let place = ring.place(self.next);
            let node = place.load(Ordering::Acquire);
            if node.is_null() {
                break;
            }
            if asked.wrapping_sub(self.next) > AHEAD {
                // The first place, or one that was free when the loop below read it.
                prefetch(node.addr(), LINES);
                asked = self.next;
            }
            place.store(ptr::null_mut(), Ordering::Relaxed);
            while asked.wrapping_sub(self.next) < AHEAD {
                let behind = ring.place(asked.wrapping_add(1)).load(Ordering::Relaxed);
                if behind.is_null() {
                    break;
                }
                prefetch(behind.addr(), LINES);
                asked = asked.wrapping_add(1);
            }
            // SAFETY: `put` gave the node up, and its release store was acquired by the load above. No other thread takes from this
            // ring: there is one `Consumer`, borrowed mutably by this call, and the place is free now.
            chain.push(unsafe { NodeBox::from_raw(node) });
            self.next = self.next.wrapping_add(1);
        }
        // Not stored without need: polling threads keep reading that line.
        if self.next != ring.next.load(Ordering::Relaxed) {
            ring.next.store(self.next, Ordering::Relaxed);
        }
    }
}

impl<T> Drop for SpscRing<T> {
    fn drop(&mut self) {
        for place in &self.places {
            let node = place.load(Ordering::Acquire);
            if !node.is_null() {
                // SAFETY: both ends are dropped, so the ring is the only owner of the nodes left in it.
                drop(unsafe { NodeBox::from_raw(node) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn values(consumer: &mut Consumer<u32>) -> Vec<u32> {
        let mut chain = NodeList::new();
        consumer.take(&mut chain);
        std::iter::from_fn(|| chain.pop().map(|boxed| *boxed)).collect()
    }

    #[test]
    fn slots_come_out_in_the_order_they_went_in_round_after_round() {
        let (mut producer, mut consumer) = ring(4);
        assert!(consumer.ring().is_empty());
        let mut next = 0;
        for round in 0..40 {
            let count = round % 5;
            let put: Vec<u32> = (next..next + count).collect();
            assert!(put.iter().all(|value| producer.put(NodeBox::new(*value)).is_ok()));
            assert_eq!(consumer.ring().is_empty(), count == 0);
            assert_eq!(values(&mut consumer), put);
            next += count;
        }
    }

    #[test]
    fn a_full_ring_gives_the_slot_back() {
        let (mut producer, mut consumer) = ring(2);
        assert!((0..2).all(|value| producer.put(NodeBox::new(value)).is_ok()));
        assert_eq!(producer.put(NodeBox::new(9)).err().map(|boxed| *boxed), Some(9));
        assert_eq!(values(&mut consumer), [0, 1]);
        assert!(producer.put(NodeBox::new(2)).is_ok());
        assert_eq!(values(&mut consumer), [2]);
    }

    #[test]
    fn what_was_never_taken_is_dropped() {
        let counted = Arc::new(());
        let (mut producer, consumer) = ring(4);
        assert!((0..3).all(|_| producer.put(NodeBox::new(counted.clone())).is_ok()));
        drop(consumer);
        drop(producer);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn the_order_survives_two_threads() {
        const EACH: u32 = if cfg!(miri) { 200 } else { 200_000 };
        let (mut producer, mut consumer) = ring(16);
        let feeder = std::thread::spawn(move || {
            for value in 0..EACH {
                let mut boxed = NodeBox::new(value);
                while let Err(back) = producer.put(boxed) {
                    boxed = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut seen = 0;
        while seen < EACH {
            for value in values(&mut consumer) {
                assert_eq!(value, seen);
                seen += 1;
            }
        }
        feeder.join().expect("it puts all");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Mutex;
    use loom::thread;

    use super::*;
    use crate::sync::parker::Parker;

    /// A value whose every access loom checks for races.
    struct Checked(UnsafeCell<u32>);

    fn one(value: u32) -> NodeBox<Checked> {
        NodeBox::new(Checked(UnsafeCell::new(value)))
    }

    fn read(consumer: &mut Consumer<Checked>) -> Vec<u32> {
        let mut chain = NodeList::new();
        consumer.take(&mut chain);
        // SAFETY: the list owns its node boxes; loom checks this.
        std::iter::from_fn(|| chain.pop().map(|boxed| boxed.0.with(|value| unsafe { *value }))).collect()
    }

    /// Three node boxes through two places, put in by `put`.
    fn in_order(put: fn(&mut Producer<Checked>, NodeBox<Checked>) -> Result<(), NodeBox<Checked>>) {
        loom::model(move || {
            let (mut producer, mut consumer) = ring(2);
            let feeder = thread::spawn(move || {
                let mut full = 0;
                for value in 1..=3 {
                    full += usize::from(put(&mut producer, one(value)).is_err());
                }
                full
            });
            // Without the yield, loom's reduction leaves out the orders in which a node box is in the ring by now.
            thread::yield_now();
            let mut seen = read(&mut consumer);
            let full = feeder.join().expect("it puts");
            seen.extend(read(&mut consumer));
            assert_eq!(seen, [1, 2, 3][..3 - full]);
        });
    }

    #[test]
    fn loom_what_goes_through_a_ring_keeps_its_order() {
        in_order(Producer::put);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_place_that_is_filled_without_a_release_is_a_race() {
        in_order(|producer, boxed| {
            let place = producer.ring.place(producer.next);
            if !place.load(Ordering::Relaxed).is_null() {
                return Err(boxed);
            }
            // SAFETY: this thread owns the node until it is stored.
            boxed.0.with_mut(|value| unsafe { *value += 0 });
            place.store(boxed.into_raw(), Ordering::Relaxed);
            producer.next += 1;
            Ok(())
        });
    }

    /// What a submitter and a taker share: the producer under the submission lock, the ring, and the taker's parker.
    type Shared = (Mutex<Producer<Checked>>, Arc<SpscRing<Checked>>, Parker);

    /// A taker decides by `goes_to_bed` whether it may park, while a submitter puts a node box in under the lock and reads the
    /// taker's flag there. A taker that parked while its flag stays set would never be woken.
    fn never_missed(goes_to_bed: fn(&Shared) -> bool) {
        loom::model(move || {
            let (producer, mut consumer) = ring(2);
            let shared: loom::sync::Arc<Shared> =
                loom::sync::Arc::new((Mutex::new(producer), consumer.ring().clone(), Parker::new()));
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut producer = shared.0.lock().expect("not poisoned");
                    assert!(producer.put(one(1)).is_ok());
                    let sleeps = shared.2.is_parked();
                    drop(producer);
                    if sleeps {
                        shared.2.wake();
                    }
                })
            };
            let parks = goes_to_bed(&shared);
            submitter.join().expect("the submitter does not panic");
            assert_eq!(read(&mut consumer), [1], "it is there in the end");
            assert!(!(parks && shared.2.is_parked()), "it parked and was not woken");
        });
    }

    #[test]
    fn loom_a_slot_in_a_ring_wakes_a_taker_that_falls_asleep() {
        never_missed(|(lock, ring, parker)| {
            parker.prepare_park();
            lock.lock().is_ok_and(|_lock| ring.is_empty())
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_taker_that_looks_into_a_ring_without_the_lock_is_missed() {
        never_missed(|(_, ring, parker)| {
            parker.prepare_park();
            ring.is_empty()
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_taker_that_announces_itself_behind_its_look_into_a_ring_is_missed() {
        never_missed(|(lock, ring, parker)| {
            let empty = lock.lock().is_ok_and(|_lock| ring.is_empty());
            parker.prepare_park();
            empty
        });
    }
}

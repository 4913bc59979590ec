//! Rings: slots handed one by one from whoever submits to one thread context.
//!
//! A ring has two ends, each of which one thread at a time holds, and no number that both of them write: a place that is null is
//! free, any other is full (FastForward: Giacomoni, Moseley, Vachharajani, PPoPP 2008). So handing a slot over is a load and a store of
//! one word, of which eight share a line, and who takes knows the addresses of those behind it, and asks for their lines ahead.
//!
//! A place is filled by a store that releases and emptied behind a load that acquires, so who takes sees all that was written before. How
//! a taker falls asleep without missing a slot is not told here: a plain store is ordered with nothing behind it. Whoever puts
//! holds a lock, and the taker looks once more under that lock ([`Context::lie_down`](crate::context::Context::lie_down)).

#![allow(unsafe_code, reason = "owns cells through raw pointers while they lie in it")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::slot::{Cell, Chain, LINES, Slot, fetch};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// How far ahead cells are fetched while they are taken: about as long as a line takes from core to core.
const AHEAD: usize = 8;

/// Places in a line.
const PER_LINE: usize = 8;

/// The places, as those see them who only look.
pub(crate) struct Ring<T> {
    /// Null where free. A power of two of them.
    places: Box<[AtomicPtr<Cell<T>>]>,
    /// The place that is taken next, counted on for ever. Written by the taker alone.
    next: CachePadded<AtomicUsize>,
    owns: PhantomData<Box<Cell<T>>>,
}

// SAFETY: values go in on one thread and come out on another, and are never shared.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

/// The end where slots go in.
pub(crate) struct Feed<T> {
    ring: Arc<Ring<T>>,
    /// The place that is filled next, counted on for ever.
    next: usize,
}

/// The end where they come out.
pub(crate) struct Drain<T> {
    ring: Arc<Ring<T>>,
    next: usize,
}

/// The ends of a ring with so many places, a power of two.
pub(crate) fn ring<T>(places: usize) -> (Feed<T>, Drain<T>) {
    debug_assert!(places.is_power_of_two(), "places are found by a mask");
    let places = (0..places).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
    let ring = Arc::new(Ring { places, next: CachePadded::default(), owns: PhantomData });
    (Feed { ring: ring.clone(), next: 0 }, Drain { ring, next: 0 })
}

impl<T> Ring<T> {
    #[inline]
    fn place(&self, number: usize) -> &AtomicPtr<Cell<T>> {
        &self.places[number & (self.places.len() - 1)]
    }

    /// Whether there seems to be nothing to take: a cheap look.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.place(self.next.load(Ordering::Relaxed)).load(Ordering::Relaxed).is_null()
    }
}

impl<T> Feed<T> {
    /// Puts a slot in, unless there is no free place: then it comes back.
    #[inline]
    pub(crate) fn put(&mut self, slot: Slot<T>) -> Result<(), Slot<T>> {
        let place = self.ring.place(self.next);
        if !place.load(Ordering::Relaxed).is_null() {
            return Err(slot);
        }
        place.store(slot.into_raw(), Ordering::Release);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Asks for the line of the next place, which the taker writes to when it has caught up, and for the one that comes then, which it
    /// wrote to a round ago.
    #[inline]
    pub(crate) fn fetch(&self) {
        for next in [self.next, self.next.wrapping_add(PER_LINE)] {
            fetch(ptr::from_ref(self.ring.place(next)).addr(), 1);
        }
    }
}

impl<T> Drain<T> {
    /// The ring, to look at.
    pub(crate) fn ring(&self) -> &Arc<Ring<T>> {
        &self.ring
    }

    /// Takes all that is there behind what is in `chain`, oldest first: all that was put in before this call, and maybe some that
    /// is put in meanwhile.
    #[inline]
    pub(crate) fn take(&mut self, chain: &mut Chain<T>) {
        let ring = &*self.ring;
        // The last whose cell was asked for. Nobody asks behind a free place: there whoever puts is about to write.
        let mut asked = self.next.wrapping_sub(1);
        // No more than there are places: what is put in meanwhile would never end.
        for _ in 0..ring.places.len() {
            let place = ring.place(self.next);
            let cell = place.load(Ordering::Acquire);
            if cell.is_null() {
                break;
            }
            if asked.wrapping_sub(self.next) > AHEAD {
                // The first, or one that was free when it was looked at.
                fetch(cell.addr(), LINES);
                asked = self.next;
            }
            place.store(ptr::null_mut(), Ordering::Relaxed);
            while asked.wrapping_sub(self.next) < AHEAD {
                let behind = ring.place(asked.wrapping_add(1)).load(Ordering::Relaxed);
                if behind.is_null() {
                    break;
                }
                fetch(behind.addr(), LINES);
                asked = asked.wrapping_add(1);
            }
            // SAFETY: `put` gave the cell up, its store happened before the load above, and nobody else takes from this ring: there is
            // one `Drain`, borrowed for this call, and the place is free now.
            chain.push(unsafe { Slot::from_raw(cell) });
            self.next = self.next.wrapping_add(1);
        }
        // Who looks reads that line all the time.
        if self.next != ring.next.load(Ordering::Relaxed) {
            ring.next.store(self.next, Ordering::Relaxed);
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        for place in &self.places {
            let cell = place.load(Ordering::Acquire);
            if !cell.is_null() {
                // SAFETY: both ends are gone, so what they left is ours alone.
                drop(unsafe { Slot::from_raw(cell) });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn values(drain: &mut Drain<u32>) -> Vec<u32> {
        let mut chain = Chain::new();
        drain.take(&mut chain);
        std::iter::from_fn(|| chain.pop().map(|slot| *slot)).collect()
    }

    #[test]
    fn slots_come_out_in_the_order_they_went_in_round_after_round() {
        let (mut feed, mut drain) = ring(4);
        assert!(drain.ring().is_empty());
        let mut next = 0;
        for round in 0..40 {
            let count = round % 5;
            let put: Vec<u32> = (next..next + count).collect();
            assert!(put.iter().all(|value| feed.put(Slot::new(*value)).is_ok()));
            assert_eq!(drain.ring().is_empty(), count == 0);
            assert_eq!(values(&mut drain), put);
            next += count;
        }
    }

    #[test]
    fn a_full_ring_gives_the_slot_back() {
        let (mut feed, mut drain) = ring(2);
        assert!((0..2).all(|value| feed.put(Slot::new(value)).is_ok()));
        assert_eq!(feed.put(Slot::new(9)).err().map(|slot| *slot), Some(9));
        assert_eq!(values(&mut drain), [0, 1]);
        assert!(feed.put(Slot::new(2)).is_ok());
        assert_eq!(values(&mut drain), [2]);
    }

    #[test]
    fn what_was_never_taken_is_dropped() {
        let counted = Arc::new(());
        let (mut feed, drain) = ring(4);
        assert!((0..3).all(|_| feed.put(Slot::new(counted.clone())).is_ok()));
        drop(drain);
        drop(feed);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn the_order_survives_two_threads() {
        const EACH: u32 = if cfg!(miri) { 200 } else { 200_000 };
        let (mut feed, mut drain) = ring(16);
        let feeder = std::thread::spawn(move || {
            for value in 0..EACH {
                let mut slot = Slot::new(value);
                while let Err(back) = feed.put(slot) {
                    slot = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut seen = 0;
        while seen < EACH {
            for value in values(&mut drain) {
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
    use crate::sleep::Sleeper;

    /// A value whose every access loom checks for races.
    struct Checked(UnsafeCell<u32>);

    fn one(value: u32) -> Slot<Checked> {
        Slot::new(Checked(UnsafeCell::new(value)))
    }

    fn read(drain: &mut Drain<Checked>) -> Vec<u32> {
        let mut chain = Chain::new();
        drain.take(&mut chain);
        // SAFETY: the chain owns its slots; loom checks the claim.
        std::iter::from_fn(|| chain.pop().map(|slot| slot.0.with(|value| unsafe { *value }))).collect()
    }

    /// Three slots through two places; `put` is how they go in.
    fn in_order(put: fn(&mut Feed<Checked>, Slot<Checked>) -> Result<(), Slot<Checked>>) {
        loom::model(move || {
            let (mut feed, mut drain) = ring(2);
            let feeder = thread::spawn(move || {
                let mut full = 0;
                for value in 1..=3 {
                    full += usize::from(put(&mut feed, one(value)).is_err());
                }
                full
            });
            // Loom alone reduces the orders away in which something is there by now.
            thread::yield_now();
            let mut seen = read(&mut drain);
            let full = feeder.join().expect("it puts");
            seen.extend(read(&mut drain));
            assert_eq!(seen, [1, 2, 3][..3 - full]);
        });
    }

    #[test]
    fn loom_what_goes_through_a_ring_keeps_its_order() {
        in_order(Feed::put);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_place_that_is_filled_without_a_release_is_a_race() {
        in_order(|feed, slot| {
            let place = feed.ring.place(feed.next);
            if !place.load(Ordering::Relaxed).is_null() {
                return Err(slot);
            }
            // SAFETY: the cell is ours until it is stored.
            slot.0.with_mut(|value| unsafe { *value += 0 });
            place.store(slot.into_raw(), Ordering::Relaxed);
            feed.next += 1;
            Ok(())
        });
    }

    /// What a submitter and a taker share: the submission lock with the feed, the ring, the bed.
    type Shared = (Mutex<Feed<Checked>>, Arc<Ring<Checked>>, Sleeper);

    /// A taker that decides by `goes_to_bed` whether it may park, and a submitter that puts a slot in under the lock and looks at the bed
    /// there. A taker that parked while its flag stays set would sleep for ever.
    fn never_missed(goes_to_bed: fn(&Shared) -> bool) {
        loom::model(move || {
            let (feed, mut drain) = ring(2);
            let shared: loom::sync::Arc<Shared> =
                loom::sync::Arc::new((Mutex::new(feed), drain.ring().clone(), Sleeper::new()));
            let submitter = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let mut feed = shared.0.lock().expect("nobody panics");
                    assert!(feed.put(one(1)).is_ok());
                    let sleeps = shared.2.is_sleeping();
                    drop(feed);
                    if sleeps {
                        shared.2.wake();
                    }
                })
            };
            let parks = goes_to_bed(&shared);
            submitter.join().expect("the submitter does not panic");
            assert_eq!(read(&mut drain), [1], "it is there in the end");
            assert!(!(parks && shared.2.is_sleeping()), "it parked and was not woken");
        });
    }

    #[test]
    fn loom_a_slot_in_a_ring_wakes_a_taker_that_falls_asleep() {
        never_missed(|(lock, ring, sleeper)| {
            sleeper.prepare();
            lock.lock().is_ok_and(|_lock| ring.is_empty())
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_taker_that_looks_into_a_ring_without_the_lock_is_missed() {
        never_missed(|(_, ring, sleeper)| {
            sleeper.prepare();
            ring.is_empty()
        });
    }

    #[test]
    #[should_panic(expected = "was not woken")]
    fn loom_a_taker_that_announces_itself_behind_its_look_into_a_ring_is_missed() {
        never_missed(|(lock, ring, sleeper)| {
            let empty = lock.lock().is_ok_and(|_lock| ring.is_empty());
            sleeper.prepare();
            empty
        });
    }
}

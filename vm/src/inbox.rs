//! Inboxes: many threads push chains of slots, one takes them all.
//!
//! A stack of batches (Treiber 1986): a push links its whole batch by one compare-and-swap, and a take empties the stack
//! by one swap and turns it round, so batches come out in the order in which they went in. As nothing is ever popped
//! singly, there is no ABA problem, and no cell is read that another thread may free.
//!
//! Ordering: a push releases and a take acquires, so the taker sees everything written before the push. How a taker
//! falls asleep without missing a push is in `sleep.rs`.

#![allow(unsafe_code, reason = "links cells that the inbox owns through raw pointers")]

use std::marker::PhantomData;
use std::ptr;

use crossbeam_utils::CachePadded;

use crate::slot::{AHEAD, Cell, Chain, LINES, Slot, fetch};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// Batches on their way to one thread. Any thread may push; any one thread at a time takes.
pub(crate) struct Inbox<T> {
    /// The first cell of the newest batch, or null. On a line of its own: pushers and the taker pass it to and fro, and
    /// nothing else should travel with it.
    newest: CachePadded<AtomicPtr<Cell<T>>>,
    /// The addresses of the batches that were put in last, newest first, be they still there or not. On a line of the pushers.
    latest: CachePadded<[AtomicUsize; AHEAD]>,
    owns: PhantomData<Box<Cell<T>>>,
}

// SAFETY: values go in on one thread and come out on another, and are never shared.
unsafe impl<T: Send> Sync for Inbox<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Inbox<T> {}

impl<T> Inbox<T> {
    /// An empty inbox.
    pub(crate) fn new() -> Inbox<T> {
        let newest = CachePadded::new(AtomicPtr::new(ptr::null_mut()));
        Inbox { newest, latest: CachePadded::new(std::array::from_fn(|_| AtomicUsize::new(0))), owns: PhantomData }
    }

    /// Puts a batch in, behind those already there, and leaves `chain` empty. An empty chain is not put in.
    #[inline]
    pub(crate) fn push(&self, chain: &mut Chain<T>) {
        if chain.is_empty() {
            return;
        }
        let (first, last, len) = chain.take_parts();
        // SAFETY: the chain gave its cells up to us.
        unsafe { self.link(first, last, len) }
    }

    /// Puts a slot in, as a batch of its own.
    #[inline]
    pub(crate) fn push_one(&self, slot: Slot<T>) {
        let cell = slot.into_raw();
        // SAFETY: the slot gave its cell up to us.
        unsafe { self.link(cell, cell, 1) }
    }

    /// Puts in so many cells, from `first` to `last`.
    ///
    /// # Safety
    /// They are linked in this order, and the inbox's from now on.
    #[inline]
    unsafe fn link(&self, first: *mut Cell<T>, last: *mut Cell<T>, len: usize) {
        // SAFETY: the caller has given the cells up, and until the exchange below succeeds no other thread sees them.
        let batch = unsafe { &mut (*first).batch };
        batch.last = last;
        batch.len = len;
        let (before, far) = self.note(first.expose_provenance());
        if len == 1 {
            // SAFETY: as above.
            unsafe { (*first).ahead = far };
        }
        // Either nobody has taken since the last push, or nobody has pushed since: tried in turn. A look before the exchange
        // would fetch the line twice: to read it, and to write to it. If another cell lies by now where that batch lay, and is
        // the newest, it is the one that is meant.
        let mut newest = ptr::with_exposed_provenance_mut(before);
        loop {
            batch.next = newest;
            match self.newest.compare_exchange_weak(newest, first, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => newest = now,
            }
        }
    }

    /// Notes a batch that is put in. Returns the one before it, and the one that was put in as many before as cells are fetched
    /// ahead. Of several pushers at once, some may be forgotten.
    #[inline]
    fn note(&self, address: usize) -> (usize, usize) {
        let mut moved = address;
        for place in &*self.latest {
            let before = place.load(Ordering::Relaxed);
            place.store(moved, Ordering::Relaxed);
            moved = before;
        }
        (self.latest[1].load(Ordering::Relaxed), moved)
    }

    /// Whether there seems to be nothing to take: a cheap look.
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }

    /// Whether there is nothing to take, for a taker that has announced that it will sleep: a read-modify-write that
    /// is ordered with every push (see `sleep.rs`).
    pub(crate) fn is_surely_empty(&self) -> bool {
        let null = ptr::null_mut();
        self.newest.compare_exchange(null, null, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes everything, oldest batch first. Of cells that were put in one by one each is told the one ahead of it, as if they had
    /// been put in together.
    pub(crate) fn take(&self) -> Chain<T> {
        // A look before the swap: an idle taker does not take the line from the pushers.
        if self.newest.load(Ordering::Relaxed).is_null() {
            return Chain::new();
        }
        let mut batch = self.newest.swap(ptr::null_mut(), Ordering::SeqCst);
        let mut chain = Chain::new();
        let (mut singles, mut newer) = (0, [0; AHEAD]);
        while !batch.is_null() {
            // SAFETY: the swap made us the owner of every batch, and the pusher's writes happened before it.
            let cell = unsafe { &mut *batch };
            let (older, last, len) = (cell.batch.next, cell.batch.last, cell.batch.len);
            if len == 1 {
                // From the newest to the oldest each look would wait for the pusher's core.
                if cell.ahead != 0 {
                    fetch(cell.ahead, LINES);
                }
                cell.ahead = std::mem::replace(&mut newer[singles % AHEAD], batch.addr());
                singles += 1;
            } else {
                (singles, newer) = (0, [0; AHEAD]);
            }
            // SAFETY: `last` is the last cell of a batch that we own.
            unsafe { (*last).next = chain.first };
            if chain.last.is_null() {
                chain.last = last;
            }
            chain.first = batch;
            chain.len += len;
            batch = older;
        }
        chain
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn chain(values: impl IntoIterator<Item = u32>) -> Chain<u32> {
        let mut chain = Chain::new();
        values.into_iter().for_each(|value| chain.push(Slot::new(value)));
        chain
    }

    fn values(mut chain: Chain<u32>) -> Vec<u32> {
        std::iter::from_fn(|| chain.pop().map(|slot| *slot)).collect()
    }

    #[test]
    fn batches_come_out_in_the_order_they_went_in() {
        let inbox = Inbox::new();
        inbox.push(&mut chain(0..3));
        inbox.push(&mut chain([]));
        inbox.push(&mut chain(3..4));
        inbox.push(&mut chain(4..6));
        let all = inbox.take();
        assert_eq!(all.len(), 6);
        assert_eq!(values(all), [0, 1, 2, 3, 4, 5]);
        assert!(inbox.is_empty());
        assert!(inbox.take().is_empty());
    }

    #[test]
    fn what_was_never_taken_is_dropped() {
        let counted = Arc::new(());
        let inbox = Inbox::new();
        let mut chain = Chain::new();
        (0..3).for_each(|_| chain.push(Slot::new(counted.clone())));
        inbox.push(&mut chain);
        drop(inbox);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn each_pusher_s_order_survives_many_threads() {
        const EACH: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let inbox = Arc::new(Inbox::new());
        let pushers: Vec<_> = (0..3u32)
            .map(|who| {
                let inbox = inbox.clone();
                std::thread::spawn(move || (0..EACH).for_each(|i| inbox.push(&mut chain([who * EACH + i]))))
            })
            .collect();
        let mut seen = [0; 3];
        while seen != [EACH; 3] {
            for value in values(inbox.take()) {
                let who = (value / EACH) as usize;
                assert_eq!(value % EACH, seen[who]);
                seen[who] += 1;
            }
        }
        pushers.into_iter().for_each(|pusher| pusher.join().expect("a pusher does not panic"));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A value whose every access loom checks for races.
    struct Checked(UnsafeCell<u32>);

    fn one(value: u32) -> Chain<Checked> {
        let mut chain = Chain::new();
        chain.push(Slot::new(Checked(UnsafeCell::new(value))));
        chain
    }

    fn read(chain: &mut Chain<Checked>) -> Vec<u32> {
        // SAFETY: the chain owns its slots; loom checks the claim.
        std::iter::from_fn(|| chain.pop().map(|slot| slot.0.with(|value| unsafe { *value }))).collect()
    }

    #[test]
    fn loom_nothing_is_lost_and_each_pusher_s_order_is_kept() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            let pusher = {
                let inbox = inbox.clone();
                thread::spawn(move || {
                    inbox.push(&mut one(1));
                    inbox.push(&mut one(2));
                })
            };
            inbox.push(&mut one(10));
            let mut seen = read(&mut inbox.take());
            pusher.join().expect("the pusher does not panic");
            seen.extend(read(&mut inbox.take()));
            let place = |value| seen.iter().position(|other| *other == value).expect("not lost");
            assert_eq!(seen.len(), 3);
            assert!(place(1) < place(2));
            assert!(place(10) < 3);
        });
    }

    /// The same stack with a push that does not release what it links.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_push_that_does_not_release_is_a_race() {
        loom::model(|| {
            let inbox = Arc::new(Inbox::new());
            let pusher = {
                let inbox = inbox.clone();
                thread::spawn(move || {
                    let (first, last, len) = one(1).take_parts();
                    // SAFETY: the cell is ours until it is linked.
                    let batch = unsafe { &mut (*first).batch };
                    (batch.next, batch.last, batch.len) = (ptr::null_mut(), last, len);
                    // SAFETY: as above.
                    unsafe { &(*first).value().0 }.with_mut(|value| unsafe { *value = 2 });
                    inbox.newest.store(first, Ordering::Relaxed);
                })
            };
            let _ = read(&mut inbox.take());
            pusher.join().expect("the pusher does not panic");
        });
    }
}

//! An MPSC queue of batches: many threads push node lists, one thread takes all of them.
//!
//! The algorithm is a stack of batches (Treiber 1986). A push links its whole batch by one compare-and-swap. A take empties the
//! stack by one swap and reverses it, so batches come out in the order in which they went in. No batch is ever popped alone, so
//! there is no ABA problem, and no thread reads a node that another thread may free.
//!
//! Ordering: a push releases and a take acquires, so the taker sees all writes made before the push. How a taker parks without
//! missing a push is explained in `sync/parker.rs`.

#![allow(unsafe_code, reason = "links nodes that the queue owns through raw pointers")]

use std::marker::PhantomData;
use std::ptr;

use crossbeam_utils::CachePadded;

use crate::queue::node::{AHEAD, LINES, Node, NodeList, prefetch};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};

/// Batches on their way to one thread. Any thread may push; one thread at a time takes.
pub(crate) struct MpscQueue<T> {
    /// The first node of the newest batch, or null. It has a cache line of its own, because pushers and the taker pass that line to
    /// and fro.
    newest: CachePadded<AtomicPtr<Node<T>>>,
    /// The addresses of the batches pushed last, newest first, whether or not they are still in the queue. Only pushers use this
    /// line.
    latest: CachePadded<[AtomicUsize; AHEAD]>,
    owns: PhantomData<Box<Node<T>>>,
}

// SAFETY: a shared queue moves values from thread to thread and gives out no reference to them, so `T: Send` suffices.
unsafe impl<T: Send> Sync for MpscQueue<T> {}
// SAFETY: the queue owns its nodes, whose values are `Send`.
unsafe impl<T: Send> Send for MpscQueue<T> {}

impl<T> MpscQueue<T> {
    /// An empty queue.
    pub(crate) fn new() -> MpscQueue<T> {
        let newest = CachePadded::new(AtomicPtr::new(ptr::null_mut()));
        MpscQueue { newest, latest: CachePadded::new(std::array::from_fn(|_| AtomicUsize::new(0))), owns: PhantomData }
    }

    /// Pushes a batch after those already in the queue and leaves `list` empty. An empty list is not pushed.
    #[inline]
    pub(crate) fn push(&self, list: &mut NodeList<T>) {
        if list.is_empty() {
            return;
        }
        let (first, last, len) = list.take_parts();
        // SAFETY: the list gave up its nodes, which are linked from `first` to `last`.
        unsafe { self.link(first, last, len) }
    }

    /// Pushes the batch of `len` nodes from `first` to `last`.
    ///
    /// # Safety
    /// * The nodes are linked from `first` to `last` through `next`, and there are `len` of them.
    /// * The caller owns them, and gives them up to the queue.
    #[inline]
    unsafe fn link(&self, first: *mut Node<T>, last: *mut Node<T>, len: usize) {
        // SAFETY: the caller has given the nodes up, and no other thread sees them until the exchange below succeeds.
        let batch = unsafe { &mut (*first).batch };
        batch.last = last;
        batch.len = len;
        let (before, far) = self.note(first.expose_provenance());
        if len == 1 {
            // SAFETY: as above.
            unsafe { (*first).ahead = far };
        }
        // The newest batch probably is the one pushed before this one, or null because the taker has emptied the queue: both are
        // tried in turn. A load before the exchange would transfer the cache line twice, once to read it and once to write it. The
        // expected address may meanwhile belong to a recycled node; if that node is the newest, it is the right one to link. The
        // address of every pushed node was exposed by its push, so the pointer made of it may be followed by the taker.
        let mut newest = ptr::with_exposed_provenance_mut(before);
        loop {
            batch.next = newest;
            match self.newest.compare_exchange_weak(newest, first, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => newest = now,
            }
        }
    }

    /// Records the address of a pushed batch. Returns the address of the batch pushed before it, and of the one pushed [`AHEAD`]
    /// batches before it; 0 if there is none. Hints: concurrent pushers may lose entries.
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

    /// Whether the queue seems empty. A hint: a relaxed load.
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }

    /// Whether the queue is empty, for a taker that has announced that it will park: a read-modify-write, which is ordered with
    /// every push (see `sync/parker.rs`).
    pub(crate) fn is_surely_empty(&self) -> bool {
        let null = ptr::null_mut();
        self.newest.compare_exchange(null, null, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes everything, oldest batch first. Nodes that were pushed one by one get the address of the node [`AHEAD`] places after
    /// them, as if they had been pushed as one list.
    pub(crate) fn take(&self) -> NodeList<T> {
        // A load before the swap, so that an idle taker does not take the cache line away from the pushers.
        if self.newest.load(Ordering::Relaxed).is_null() {
            return NodeList::new();
        }
        let mut batch = self.newest.swap(ptr::null_mut(), Ordering::SeqCst);
        let mut list = NodeList::new();
        let (mut singles, mut newer) = (0, [0; AHEAD]);
        while !batch.is_null() {
            // SAFETY: the swap made this call the owner of every batch, and acquired the pushers' writes.
            let node = unsafe { &mut *batch };
            let (older, last, len) = (node.batch.next, node.batch.last, node.batch.len);
            if len == 1 {
                // The walk goes from the newest node to the oldest, and without this each node would be a cache miss to the
                // pusher's core.
                if node.ahead != 0 {
                    prefetch(node.ahead, LINES);
                }
                node.ahead = std::mem::replace(&mut newer[singles % AHEAD], batch.addr());
                singles += 1;
            } else {
                (singles, newer) = (0, [0; AHEAD]);
            }
            // SAFETY: `last` is the last node of a batch that this call owns.
            unsafe { (*last).next = list.first };
            if list.last.is_null() {
                list.last = last;
            }
            list.first = batch;
            list.len += len;
            batch = older;
        }
        list
    }
}

impl<T> Drop for MpscQueue<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::queue::node::NodeBox;

    fn chain(values: impl IntoIterator<Item = u32>) -> NodeList<u32> {
        let mut list = NodeList::new();
        values.into_iter().for_each(|value| list.push(NodeBox::new(value)));
        list
    }

    fn values(mut list: NodeList<u32>) -> Vec<u32> {
        std::iter::from_fn(|| list.pop().map(|boxed| *boxed)).collect()
    }

    #[test]
    fn batches_come_out_in_the_order_they_went_in() {
        let inbox = MpscQueue::new();
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
    fn batches_that_are_never_taken_are_dropped() {
        let counted = Arc::new(());
        let inbox = MpscQueue::new();
        let mut list = NodeList::new();
        (0..3).for_each(|_| list.push(NodeBox::new(counted.clone())));
        inbox.push(&mut list);
        drop(inbox);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn each_pusher_s_order_survives_many_threads() {
        const EACH: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let inbox = Arc::new(MpscQueue::new());
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
    use crate::queue::node::NodeBox;

    /// A value whose every access loom checks for races.
    struct Checked(UnsafeCell<u32>);

    fn one(value: u32) -> NodeList<Checked> {
        let mut list = NodeList::new();
        list.push(NodeBox::new(Checked(UnsafeCell::new(value))));
        list
    }

    fn read(list: &mut NodeList<Checked>) -> Vec<u32> {
        // SAFETY: the list owns its node boxes; loom checks this.
        std::iter::from_fn(|| list.pop().map(|boxed| boxed.0.with(|value| unsafe { *value }))).collect()
    }

    #[test]
    fn loom_nothing_is_lost_and_each_pusher_s_order_is_kept() {
        loom::model(|| {
            let inbox = Arc::new(MpscQueue::new());
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

    /// The same queue with a push that does not release what it links.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_push_that_does_not_release_is_a_race() {
        loom::model(|| {
            let inbox = Arc::new(MpscQueue::new());
            let pusher = {
                let inbox = inbox.clone();
                thread::spawn(move || {
                    let (first, last, len) = one(1).take_parts();
                    // SAFETY: this thread owns the node until it is linked.
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

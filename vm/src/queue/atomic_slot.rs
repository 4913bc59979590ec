//! An atomic slot: a box that holds at most one node box.

#![allow(unsafe_code, reason = "owns the node of its node box through a raw pointer")]

use std::marker::PhantomData;
use std::ptr;

use crate::queue::node::{Node, NodeBox};
use crate::sync::{AtomicPtr, Ordering};

/// An atomic optional node box. Any thread may put one in, and any thread may take it out; of several concurrent takers, one gets
/// it.
pub(crate) struct AtomicSlot<T> {
    /// The node of the node box that the slot owns, or null.
    node: AtomicPtr<Node<T>>,
    owns: PhantomData<NodeBox<T>>,
}

// SAFETY: a shared slot moves values from thread to thread and gives out no reference to them, so `T: Send` suffices.
unsafe impl<T: Send> Sync for AtomicSlot<T> {}
// SAFETY: the slot owns its node box, which is `Send` for `T: Send`.
unsafe impl<T: Send> Send for AtomicSlot<T> {}

impl<T> AtomicSlot<T> {
    /// An empty slot.
    pub(crate) fn new() -> AtomicSlot<T> {
        AtomicSlot { node: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// Puts a node box in. The slot must be empty: a node box in it would be leaked.
    pub(crate) fn put(&self, boxed: NodeBox<T>) {
        debug_assert!(self.node.load(Ordering::Relaxed).is_null(), "the node box there would be lost");
        // Release: publishes the writes to the node box. A plain store suffices, because the slot is empty.
        self.node.store(boxed.into_raw(), Ordering::Release);
    }

    /// Takes the node box out, if there is one.
    pub(crate) fn take(&self) -> Option<NodeBox<T>> {
        let node = self.node.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: only `put` stores a node, which it got from `into_raw`, and the swap made this call the node's only owner.
        (!node.is_null()).then(|| unsafe { NodeBox::from_raw(node) })
    }
}

impl<T> Drop for AtomicSlot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_box_comes_out_once_or_is_dropped() {
        let counted = Arc::new(());
        let slot = AtomicSlot::new();
        assert!(slot.take().is_none());
        for _ in 0..2 {
            slot.put(NodeBox::new(counted.clone()));
            assert!(slot.take().is_some() && slot.take().is_none());
        }
        slot.put(NodeBox::new(counted.clone()));
        drop(slot);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    type Value = UnsafeCell<u32>;

    fn take(slot: Arc<AtomicSlot<Value>>) -> impl FnOnce() -> Option<u32> {
        // SAFETY: a node box is the only owner of its node; loom checks this.
        move || slot.take().map(|boxed| boxed.with(|value| unsafe { *value }))
    }

    #[test]
    fn loom_one_of_two_takers_gets_the_box() {
        loom::model(|| {
            let slot = Arc::new(AtomicSlot::new());
            slot.put(NodeBox::new(UnsafeCell::new(7)));
            let other = thread::spawn(take(slot.clone()));
            let here = take(slot)();
            let there = other.join().expect("it does not panic");
            assert_eq!(here.xor(there), Some(7));
        });
    }

    /// Another thread writes a value and puts it in by `put` while this one takes.
    fn taken_as_written(put: fn(&AtomicSlot<Value>, NodeBox<Value>)) {
        loom::model(move || {
            let slot = Arc::new(AtomicSlot::new());
            let other = {
                let slot = slot.clone();
                thread::spawn(move || {
                    let boxed = NodeBox::new(UnsafeCell::new(0));
                    // SAFETY: no other thread has the node box yet.
                    boxed.with_mut(|value| unsafe { *value = 7 });
                    put(&slot, boxed);
                })
            };
            assert!(matches!(take(slot)(), None | Some(7)));
            other.join().expect("it does not panic");
        });
    }

    #[test]
    fn loom_a_taker_sees_the_writes_before_the_put() {
        taken_as_written(AtomicSlot::put);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_put_that_does_not_release_is_a_race() {
        taken_as_written(|slot, boxed| slot.node.store(boxed.into_raw(), Ordering::Relaxed));
    }
}

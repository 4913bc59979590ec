//! Berths: where one slot waits for whoever takes it.

#![allow(unsafe_code, reason = "gives a slot that was put in back to whoever takes it out")]

use std::marker::PhantomData;
use std::ptr;

use crate::slot::{self, Cell, Slot};
use crate::sync::{AtomicPtr, Ordering};

/// Room for one slot. Any thread may put one in, and any thread may take it out; of several that do, one gets it.
pub(crate) struct Berth<T> {
    /// The cell of the slot that lies here, or null.
    cell: AtomicPtr<Cell<T>>,
    owns: PhantomData<Slot<T>>,
}

// SAFETY: values go in on one thread and come out on another, and are never shared.
unsafe impl<T: Send> Sync for Berth<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Berth<T> {}

impl<T> Berth<T> {
    /// Nothing lies there.
    pub(crate) fn new() -> Berth<T> {
        Berth { cell: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// Puts a slot in, where none lies: a slot that lay there would be lost.
    pub(crate) fn put(&self, slot: Slot<T>) {
        debug_assert!(self.cell.load(Ordering::Relaxed).is_null(), "the slot there would be lost");
        // Releases what was written to the slot. A plain store, as nothing comes out.
        self.cell.store(slot.into_raw(), Ordering::Release);
    }

    /// Takes the slot out.
    pub(crate) fn take(&self) -> Option<Slot<T>> {
        let cell = self.cell.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: a cell comes in by `put` alone, which gave up its slot, and the swap gave it to nobody else.
        (!cell.is_null()).then(|| unsafe { Slot::from_raw(cell) })
    }

    /// Asks for the lines of the slot that lies here, for who will take it soon.
    #[inline]
    pub(crate) fn fetch(&self) {
        slot::fetch(self.cell.load(Ordering::Relaxed).addr(), slot::LINES);
    }
}

impl<T> Drop for Berth<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_put_in_comes_out_once_or_is_dropped() {
        let counted = Arc::new(());
        let berth = Berth::new();
        assert!(berth.take().is_none());
        for _ in 0..2 {
            berth.put(Slot::new(counted.clone()));
            berth.fetch();
            assert!(berth.take().is_some() && berth.take().is_none());
        }
        berth.put(Slot::new(counted.clone()));
        drop(berth);
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

    fn take(berth: Arc<Berth<Value>>) -> impl FnOnce() -> Option<u32> {
        // SAFETY: a slot is its cell's only owner; loom checks the claim.
        move || berth.take().map(|slot| slot.with(|value| unsafe { *value }))
    }

    #[test]
    fn loom_of_two_who_take_one_gets_it() {
        loom::model(|| {
            let berth = Arc::new(Berth::new());
            berth.put(Slot::new(UnsafeCell::new(7)));
            let other = thread::spawn(take(berth.clone()));
            let here = take(berth)();
            let there = other.join().expect("it does not panic");
            assert_eq!(here.xor(there), Some(7));
        });
    }

    /// What another thread writes and puts in by `put` while this one takes.
    fn taken_as_written(put: fn(&Berth<Value>, Slot<Value>)) {
        loom::model(move || {
            let berth = Arc::new(Berth::new());
            let other = {
                let berth = berth.clone();
                thread::spawn(move || {
                    let slot = Slot::new(UnsafeCell::new(0));
                    // SAFETY: nobody else has the slot.
                    slot.with_mut(|value| unsafe { *value = 7 });
                    put(&berth, slot);
                })
            };
            assert!(matches!(take(berth)(), None | Some(7)));
            other.join().expect("it does not panic");
        });
    }

    #[test]
    fn loom_what_is_taken_is_seen_as_it_was_written() {
        taken_as_written(Berth::put);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_a_slot_that_is_put_in_without_a_release_is_a_race() {
        taken_as_written(|berth, slot| berth.cell.store(slot.into_raw(), Ordering::Relaxed));
    }
}

//! Deferred free: the resources whose handles were dropped since the last submission.
//!
//! A drop may happen on any thread and under any lock of the caller. So while the engine exists, a drop only notes the resource here and
//! does not take the submission lock. The next submission frees the memory. The accesses of that resource, all of them submitted before the
//! drop, order its reuse; other instructions do not.
//!
//! After the engine's end no submission comes, and each drop is processed at once by [`DeferredFree::drain`]. No drop is missed:
//!
//! * A dropping thread first adds the resource, then reads whether the engine has ended.
//! * The engine's end first sets the flag, then drains.
//! * Both add and drain by a read-modify-write of `first`, or under the lock of `others`, so one of them comes first. Either the drain
//!   finds the resource, or the dropping thread sees the flag.
//!
//! `loom_tests` checks this protocol, and that broken variants of it fail.

use streamvm_instructions::ResourceId;

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, unpoisoned};

/// Dropped resources. Any thread may add; only the holder of the submission lock takes.
#[derive(Default)]
pub(crate) struct DeferredFree {
    /// The first resource dropped since the last take, plus 1; 0 if there is none. A program that makes one tensor and drops one between
    /// submissions needs only this place, and no lock.
    first: AtomicU32,
    others: Mutex<Vec<ResourceId>>,
    any_others: AtomicBool,
}

impl DeferredFree {
    pub(crate) fn add(&self, id: ResourceId) {
        // The sum does not overflow, because resource numbers are below 2^30. Acquire: an add after a `drain` sees the flag that
        // the draining thread set before.
        if self.first.compare_exchange(0, id.0 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
        unpoisoned(self.others.lock()).push(id);
        self.any_others.store(true, Ordering::Release);
    }

    /// Whether anything was dropped since the last take. Two loads.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.first.load(Ordering::Acquire) != 0 || self.any_others.load(Ordering::Acquire)
    }

    /// Appends the dropped resources to `taken`. Only the holder of the submission lock may call it.
    #[inline]
    pub(crate) fn take(&self, taken: &mut Vec<ResourceId>) {
        let first = self.first.load(Ordering::Acquire);
        if first != 0 {
            // A plain store suffices: while `first` is not 0, adding threads do not change it, and only this thread resets it.
            self.first.store(0, Ordering::Relaxed);
            taken.push(ResourceId(first - 1));
        }
        if self.any_others.load(Ordering::Acquire) {
            self.take_others(taken);
        }
    }

    /// Passes all resources to `each` and frees the buffer, after the engine's end. One thread at a time.
    pub(crate) fn drain(&self, mut each: impl FnMut(ResourceId)) {
        let first = self.first.swap(0, Ordering::AcqRel);
        let others = {
            let mut others = unpoisoned(self.others.lock());
            self.any_others.store(false, Ordering::Relaxed);
            std::mem::take(&mut *others)
        };
        first.checked_sub(1).map(ResourceId).into_iter().chain(others).for_each(&mut each);
    }

    #[inline(never)]
    fn take_others(&self, taken: &mut Vec<ResourceId>) {
        let mut others = unpoisoned(self.others.lock());
        self.any_others.store(false, Ordering::Relaxed);
        taken.append(&mut others);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// One resource was dropped, and two threads drop others while a submitter takes what it sees, by `take`. The next submission takes the
    /// rest: each resource is taken once.
    fn each_is_taken_once(take: fn(&DeferredFree, &mut Vec<ResourceId>)) {
        loom::model(move || {
            let deferred_free = Arc::new(DeferredFree::default());
            deferred_free.add(ResourceId(0));
            let droppers: Vec<_> = [1, 2]
                .map(|id| {
                    let deferred_free = deferred_free.clone();
                    thread::spawn(move || deferred_free.add(ResourceId(id)))
                })
                .into();
            let mut taken = Vec::new();
            take(&deferred_free, &mut taken);
            droppers.into_iter().for_each(|dropper| dropper.join().expect("a drop does not panic"));
            take(&deferred_free, &mut taken);
            taken.sort_by_key(|id| id.0);
            assert_eq!(taken, [0, 1, 2].map(ResourceId), "taken");
        });
    }

    #[test]
    fn loom_each_dropped_resource_is_taken_once() {
        each_is_taken_once(DeferredFree::take);
    }

    #[test]
    #[should_panic(expected = "taken")]
    fn loom_a_flag_that_is_cleared_after_the_lock_forgets_a_drop() {
        each_is_taken_once(|deferred_free, taken| {
            taken.extend(deferred_free.first.swap(0, Ordering::Acquire).checked_sub(1).map(ResourceId));
            if deferred_free.any_others.load(Ordering::Acquire) {
                let mut others = unpoisoned(deferred_free.others.lock());
                taken.append(&mut others);
                drop(others);
                deferred_free.any_others.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Two handles are dropped while the engine ends. `add` notes a drop, and drains if it sees that the engine has ended; `end` sets the
    /// flag and drains. Each resource must be drained exactly once.
    fn each_is_struck_off_once(add: fn(&Remains, ResourceId), end: fn(&Remains)) {
        loom::model(move || {
            let remains = Arc::new(Remains::default());
            let droppers: Vec<_> = [1, 2]
                .map(|id| {
                    let remains = remains.clone();
                    thread::spawn(move || add(&remains, ResourceId(id)))
                })
                .into();
            end(&remains);
            droppers.into_iter().for_each(|dropper| dropper.join().expect("a drop does not panic"));
            let mut struck_off = remains.struck_off.lock().expect("not poisoned").clone();
            struck_off.sort_unstable();
            assert_eq!(struck_off, [1, 2], "struck off");
        });
    }

    /// The dropped resources, and the part of an engine handle that the engine's end uses.
    #[derive(Default)]
    struct Remains {
        deferred_free: DeferredFree,
        gone: AtomicBool,
        struck_off: Mutex<Vec<u32>>,
    }

    impl Remains {
        fn strike_off(&self) {
            let mut struck_off = self.struck_off.lock().expect("not poisoned");
            self.deferred_free.drain(|id| struck_off.push(id.0));
        }

        /// Same order as `Handle::release`.
        fn add(&self, id: ResourceId) {
            self.deferred_free.add(id);
            if self.gone.load(Ordering::Relaxed) {
                self.strike_off();
            }
        }

        /// Same order as `Handle::end`.
        fn end(&self) {
            self.gone.store(true, Ordering::Release);
            self.strike_off();
        }
    }

    #[test]
    fn loom_a_resource_dropped_during_the_end_is_processed_once() {
        each_is_struck_off_once(Remains::add, Remains::end);
    }

    #[test]
    #[should_panic(expected = "struck off")]
    fn loom_a_dropping_thread_that_checks_the_flag_before_it_adds_is_missed() {
        let add = |remains: &Remains, id| {
            let gone = remains.gone.load(Ordering::Relaxed);
            remains.deferred_free.add(id);
            if gone {
                remains.strike_off();
            }
        };
        each_is_struck_off_once(add, Remains::end);
    }

    #[test]
    #[should_panic(expected = "struck off")]
    fn loom_an_end_that_drains_before_it_sets_the_flag_misses_a_drop() {
        let end = |remains: &Remains| {
            remains.strike_off();
            remains.gone.store(true, Ordering::Release);
        };
        each_is_struck_off_once(Remains::add, end);
    }

    /// The end reads by a plain load, as `DeferredFree::take` does for submissions.
    #[test]
    #[should_panic(expected = "struck off")]
    fn loom_an_end_that_drains_by_a_plain_load_misses_a_drop() {
        let end = |remains: &Remains| {
            remains.gone.store(true, Ordering::Release);
            let mut taken = Vec::new();
            remains.deferred_free.take(&mut taken);
            remains.struck_off.lock().expect("not poisoned").extend(taken.iter().map(|id| id.0));
        };
        each_is_struck_off_once(Remains::add, end);
    }
}

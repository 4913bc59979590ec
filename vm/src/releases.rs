//! Handles that were dropped since the last submission.
//!
//! A drop only notes the resource here: it may happen on any thread, under any lock of the caller's, and takes neither
//! the submission lock nor time. The next submission gives the memory back, ordered after everything submitted before
//! the drop.

use streamvm_instructions::ResourceId;

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, unpoisoned};

/// Dropped resources. Any thread adds, a submitter takes.
#[derive(Default)]
pub(crate) struct Releases {
    /// The first that was dropped since the last look, plus 1, or 0: a program that makes a tensor from another and drops that one
    /// has no more, and takes no lock for it.
    first: AtomicU32,
    others: Mutex<Vec<ResourceId>>,
    any_others: AtomicBool,
}

impl Releases {
    pub(crate) fn add(&self, id: ResourceId) {
        // Numbers are below 2^30.
        if self.first.compare_exchange(0, id.0 + 1, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        unpoisoned(self.others.lock()).push(id);
        self.any_others.store(true, Ordering::Release);
    }

    /// Whether anything was dropped since the last look: a cheap look.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.first.load(Ordering::Acquire) != 0 || self.any_others.load(Ordering::Acquire)
    }

    /// Moves what was dropped behind what is in `taken`. One thread at a time.
    #[inline]
    pub(crate) fn take(&self, taken: &mut Vec<ResourceId>) {
        let first = self.first.load(Ordering::Acquire);
        if first != 0 {
            // Who adds finds it taken, and whoever takes has the submission lock: nobody changes it in between.
            self.first.store(0, Ordering::Relaxed);
            taken.push(ResourceId(first - 1));
        }
        if self.any_others.load(Ordering::Acquire) {
            self.take_others(taken);
        }
    }

    /// Forgets all, and keeps no room: nobody takes any more.
    pub(crate) fn end(&self) {
        self.first.store(0, Ordering::Relaxed);
        let others = std::mem::take(&mut *unpoisoned(self.others.lock()));
        drop(others);
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

    /// One handle was dropped, and two threads drop others while a submitter takes what it sees; `take` is how. The next
    /// submission gets the rest.
    fn each_is_taken_once(take: fn(&Releases, &mut Vec<ResourceId>)) {
        loom::model(move || {
            let releases = Arc::new(Releases::default());
            releases.add(ResourceId(0));
            let droppers: Vec<_> = [1, 2]
                .map(|id| {
                    let releases = releases.clone();
                    thread::spawn(move || releases.add(ResourceId(id)))
                })
                .into();
            let mut taken = Vec::new();
            take(&releases, &mut taken);
            droppers.into_iter().for_each(|dropper| dropper.join().expect("a drop does not panic"));
            take(&releases, &mut taken);
            taken.sort_by_key(|id| id.0);
            assert_eq!(taken, [0, 1, 2].map(ResourceId), "taken");
        });
    }

    #[test]
    fn loom_what_is_dropped_is_taken_once() {
        each_is_taken_once(Releases::take);
    }

    #[test]
    #[should_panic(expected = "taken")]
    fn loom_a_flag_that_is_cleared_behind_the_lock_forgets_a_drop() {
        each_is_taken_once(|releases, taken| {
            taken.extend(releases.first.swap(0, Ordering::Acquire).checked_sub(1).map(ResourceId));
            if releases.any_others.load(Ordering::Acquire) {
                let mut others = unpoisoned(releases.others.lock());
                taken.append(&mut others);
                drop(others);
                releases.any_others.store(false, Ordering::Relaxed);
            }
        });
    }
}

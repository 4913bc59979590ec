//! Handles that were dropped since the last submission.
//!
//! A drop only notes the resource here: it may happen on any thread, under any lock of the caller's, and takes neither
//! the submission lock nor time. The next submission gives the memory back, ordered after everything submitted before
//! the drop.

use streamvm_instructions::ResourceId;

use crate::sync::{AtomicBool, Mutex, Ordering, unpoisoned};

/// Dropped resources. Any thread adds, a submitter takes.
#[derive(Default)]
pub(crate) struct Releases {
    dropped: Mutex<Vec<ResourceId>>,
    any: AtomicBool,
}

impl Releases {
    pub(crate) fn add(&self, id: ResourceId) {
        unpoisoned(self.dropped.lock()).push(id);
        self.any.store(true, Ordering::Release);
    }

    /// Whether anything was dropped since the last look: a cheap look.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Moves what was dropped behind what is in `taken`.
    pub(crate) fn take(&self, taken: &mut Vec<ResourceId>) {
        if self.any() {
            let mut dropped = unpoisoned(self.dropped.lock());
            self.any.store(false, Ordering::Relaxed);
            taken.append(&mut dropped);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two threads drop handles while a submitter takes what it sees; `take` is how. The next submission gets the rest.
    fn each_is_taken_once(take: fn(&Releases, &mut Vec<ResourceId>)) {
        loom::model(move || {
            let releases = Arc::new(Releases::default());
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
            assert_eq!(taken, [ResourceId(1), ResourceId(2)], "taken");
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
            if releases.any.load(Ordering::Acquire) {
                let mut dropped = unpoisoned(releases.dropped.lock());
                taken.append(&mut dropped);
                drop(dropped);
                releases.any.store(false, Ordering::Relaxed);
            }
        });
    }
}

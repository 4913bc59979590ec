//! Handles that were dropped since the last submission.
//!
//! A drop only notes the resource here: it may happen on any thread, under any lock of the caller's, and takes neither
//! the submission lock nor time. The next submission gives the memory back, ordered after everything submitted before
//! the drop.
//!
//! When the engine is gone, nobody submits, and what is dropped then is counted at once. Nothing is missed: whoever adds does so
//! before it looks whether the engine is gone, and the engine's end says so before it looks at what was added. Both add and look by
//! read-modify-writes of `first`, or under the lock of the others, so one of them comes first: either the end finds what was
//! added, or whoever added it finds that the engine is gone. `loom_tests` has the model and its broken twins.

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
        // Numbers are below 2^30. Acquires: behind a `drain`, what came before that one is seen.
        if self.first.compare_exchange(0, id.0 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
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

    /// Hands all over, and keeps no room: the engine is gone. One thread at a time.
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

    /// Two handles are dropped while the engine ends. `add` notes a drop and tells whether the dropper has to strike it off; `end` says
    /// that the engine is gone and strikes off what it finds. In the end both are struck off, each once.
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
            let mut struck_off = remains.struck_off.lock().expect("nobody panics").clone();
            struck_off.sort_unstable();
            assert_eq!(struck_off, [1, 2], "struck off");
        });
    }

    /// What was dropped, and as much of a handle as its engine's end needs.
    #[derive(Default)]
    struct Remains {
        releases: Releases,
        gone: AtomicBool,
        struck_off: Mutex<Vec<u32>>,
    }

    impl Remains {
        fn strike_off(&self) {
            let mut struck_off = self.struck_off.lock().expect("nobody panics");
            self.releases.drain(|id| struck_off.push(id.0));
        }

        /// As `Handle::release` does.
        fn add(&self, id: ResourceId) {
            self.releases.add(id);
            if self.gone.load(Ordering::Relaxed) {
                self.strike_off();
            }
        }

        /// As `Handle::end` does.
        fn end(&self) {
            self.gone.store(true, Ordering::Release);
            self.strike_off();
        }
    }

    #[test]
    fn loom_what_is_dropped_beside_the_end_is_struck_off_once() {
        each_is_struck_off_once(Remains::add, Remains::end);
    }

    #[test]
    #[should_panic(expected = "struck off")]
    fn loom_a_dropper_that_looks_for_the_end_before_it_adds_is_missed() {
        let add = |remains: &Remains, id| {
            let gone = remains.gone.load(Ordering::Relaxed);
            remains.releases.add(id);
            if gone {
                remains.strike_off();
            }
        };
        each_is_struck_off_once(add, Remains::end);
    }

    #[test]
    #[should_panic(expected = "struck off")]
    fn loom_an_end_that_looks_before_it_says_so_misses_a_drop() {
        let end = |remains: &Remains| {
            remains.strike_off();
            remains.gone.store(true, Ordering::Release);
        };
        each_is_struck_off_once(Remains::add, end);
    }

    /// The end looks by a plain load, as `Releases::take` does for submissions.
    #[test]
    #[should_panic(expected = "struck off")]
    fn loom_an_end_that_looks_by_a_plain_load_misses_a_drop() {
        let end = |remains: &Remains| {
            remains.gone.store(true, Ordering::Release);
            let mut taken = Vec::new();
            remains.releases.take(&mut taken);
            remains.struck_off.lock().expect("nobody panics").extend(taken.iter().map(|id| id.0));
        };
        each_is_struck_off_once(Remains::add, end);
    }
}

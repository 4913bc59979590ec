use std::collections::HashSet;
use std::sync::Barrier;

use super::*;

/// Held by the test that needs helpers. Two callers whose parts wait for a helper would wait for ever, since together they are as many
/// threads as their calls allow.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `f` with this many threads, on a thread of its own, while no other test does.
fn with_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    let _alone = lock(&ALONE);
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            set_threads(threads);
            f()
        });
        run.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[test]
fn every_part_runs_once() {
    for (threads, parts) in [(1, 5), (2, 1), (2, 1000), (4, 3), (4, 1000)] {
        let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        with_threads(threads, || {
            split(parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} threads, {parts} parts");
    }
}

/// Two threads take short parts at the same time: the first two parts wait for each other, so a helper has come before the others begin.
#[test]
fn no_part_is_taken_by_two_threads() {
    for _ in 0..40 {
        let (both, parts) = (Barrier::new(2), 50_000);
        let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        with_threads(2, || {
            split(parts, &|part| {
                if part < 2 {
                    both.wait();
                }
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
        });
        let wrong = counts.iter().filter(|count| count.load(Ordering::Relaxed) != 1).count();
        assert_eq!(wrong, 0, "parts that ran not once");
    }
}

#[test]
fn helpers_take_parts() {
    // Both parts wait for each other, so one thread cannot run both.
    let both = Barrier::new(2);
    let threads = Mutex::new(HashSet::new());
    with_threads(2, || {
        split(2, &|_| {
            both.wait();
            lock(&threads).insert(thread::current().id());
        });
    });
    assert_eq!(lock(&threads).len(), 2);
}

#[test]
fn calls_at_the_same_time_share_the_helpers() {
    let total = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                set_threads(3);
                for _ in 0..500 {
                    split(7, &|part| {
                        total.fetch_add(part, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 500 * 21);
}

/// Two parts wait for each other, so a helper has one of them; the guilty one panics.
#[test]
fn a_panic_in_a_part_reaches_the_caller() {
    for of_helper in [false, true] {
        let both = Barrier::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            with_threads(2, || {
                let caller = thread::current().id();
                split(2, &|_| {
                    both.wait();
                    assert_eq!(thread::current().id() == caller, of_helper, "guilty");
                });
            });
        }));
        let message = caught.expect_err("it panics");
        assert!(message.downcast_ref::<String>().is_some_and(|text| text.contains("guilty")));
    }
    // The pool works as before.
    every_part_runs_once();
}

/// A payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("it was dropped");
    }
}

/// Both parts panic. One payload reaches the caller, and the other one is not dropped in the helper, which would not leave the work.
#[test]
fn two_panics_whose_payloads_panic_when_dropped_are_borne() {
    for _ in 0..3 {
        let both = Barrier::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            with_threads(2, || {
                split(2, &|_| {
                    both.wait();
                    resume_unwind(Box::new(Bomb));
                });
            });
        }));
        let bomb = caught.expect_err("it panics").downcast::<Bomb>().expect("the payload of a part");
        std::mem::forget(bomb);
    }
    helpers_take_parts();
}

/// One caller is in a part, so a second one makes two threads that compute: as many as its call allows. No helper takes a core from them.
#[test]
fn callers_that_fill_the_cores_have_no_helpers() {
    let (inside, over) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            set_threads(2);
            split(2, &|part| {
                if part == 0 {
                    inside.wait();
                    while !over.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                }
            });
        });
        inside.wait();
        let threads = Mutex::new(HashSet::new());
        with_threads(2, || {
            split(50, &|_| {
                thread::sleep(Duration::from_millis(1));
                lock(&threads).insert(thread::current().id());
            });
        });
        over.store(true, Ordering::Release);
        assert_eq!(lock(&threads).len(), 1);
    });
}

#[test]
fn a_part_is_not_divided_again() {
    let both = Barrier::new(2);
    let left = with_threads(2, || {
        split(2, &|_| {
            both.wait();
            assert_eq!(THREADS.get(), 1);
        });
        THREADS.get()
    });
    assert_eq!(left, 2, "the next kernel may be divided");
}

#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_has_a_pool_of_its_own() {
    with_threads(2, || {
        let both = Barrier::new(2);
        split(2, &|_| _ = both.wait());
        // SAFETY: the child runs only the code below and leaves by `_exit`, so it returns into no frame of the test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it has no argument but a time. The signal ends the child if no helper comes.
            unsafe { libc::alarm(20) };
            let both = Barrier::new(2);
            let sum = AtomicUsize::new(0);
            split(2, &|part| {
                both.wait();
                sum.fetch_add(part, Ordering::Relaxed);
            });
            let status = i32::from(sum.into_inner() != 1);
            // SAFETY: it ends the child without running anything else.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: `child` is a child of this process, and `status` outlives the call.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child had a helper");
    });
}

//! The threads that help with large kernels, and with lanes of programs: one pool for all CPU devices of a process.
//!
//! A kernel is divided into parts with numbers from 0, and so is a run on several lanes, of which each is a part. The calling thread *opens* the work, takes parts itself until none is left, *closes*
//! the work and waits for the helpers that are still in a part. A helper that comes too late finds the work closed. So a call never waits
//! for a thread that has not begun to help, and streams that compute at the same time share the helpers without a queue of stale tasks.
//!
//! * Helpers join only while the threads that compute, callers and helpers, are fewer than the call allows. So callers that compute side by
//!   side on all cores get no helpers that would take these cores from them.
//! * A lane may call functions of the caller, which may take long, block, or call engines: a thread that waits for it sleeps after a while, and such calls do not change how many
//!   threads the next part may use. A function that never returns keeps its threads, and those count as threads that compute.
//! * No thread is started before it is needed. The pool grows to the largest number of helpers that a call has asked for.
//! * An idle helper polls for [`SPIN`] after its last part, because large kernels often follow each other, and then sleeps.
//! * A child of `fork` has none of the threads, and a lock of the pool may be held by a thread that it does not have. So a pool is used only
//!   by the process that made it; a child makes its own ([`fork`](streamvm_ep::Fork)).
//!
//! Invariant: the pointer to a work is in `open` only between [`Pool::open`] and [`Pool::close`], and `close` returns after the last
//! helper has left the work.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use streamvm_ep::PerProcess;

use crate::patience::Patience;

/// How long an idle helper polls before it sleeps: a wake-up of a sleeping thread takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// Polls between two looks at the clock.
const POLLS: u32 = 64;

thread_local! {
    /// How many threads a kernel on this thread may use. 1 while the thread computes a part, which is not divided again.
    static THREADS: Cell<usize> = const { Cell::new(1) };
}

/// Sets how many threads the kernels that this thread calls may use, itself included.
#[inline]
pub fn set_threads(threads: usize) {
    THREADS.set(threads);
}

/// The parts of one kernel. It lives on the stack of the calling thread.
struct Work<'a> {
    part: &'a (dyn Fn(usize) + Sync),
    parts: usize,
    /// The most threads that may compute, here and in other works, when a helper joins.
    threads: usize,
    /// The lowest number of a part that no thread has taken.
    next: AtomicUsize,
    /// Helpers that may still join; changed under the pool's lock.
    places: AtomicUsize,
    /// Helpers in this work; it is incremented under the pool's lock.
    helpers: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Work<'_> {
    /// Takes parts until none is left. After a panic no more parts are taken.
    fn help(&self) {
        let taken = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                if part >= self.parts {
                    return;
                }
                // A part is not divided again. A function of the caller in the part before may have set another number.
                THREADS.set(1);
                (self.part)(part);
            }
        }));
        if let Err(panic) = taken {
            self.next.store(self.parts, Ordering::Relaxed);
            let mut first = lock(&self.panic);
            if first.is_none() {
                *first = Some(panic);
            } else {
                // Dropping the payload of a second panic could panic, too, and this helper would never leave the work.
                std::mem::forget(panic);
            }
        }
    }
}

/// The address of an open work; its lifetime is guarded by the module's invariant.
#[derive(Copy, Clone, PartialEq)]
struct Address(*const Work<'static>);

// SAFETY: a `Work` is shared between threads by atomics, a mutex and a `Sync` function.
unsafe impl Send for Address {}

#[derive(Default)]
struct State {
    open: Vec<Address>,
    /// Threads of the pool, those of them that sleep, and those that are in a work or have just left it.
    helpers: usize,
    asleep: usize,
    busy: usize,
    /// Threads that have opened a work and not closed it.
    callers: usize,
}

impl State {
    /// The place in `open` of a work that a helper may join.
    fn joinable(&self) -> Option<usize> {
        self.open.iter().position(|open| {
            // SAFETY: it is open, and the lock is held, so it exists.
            let work = unsafe { &*open.0 };
            work.places.load(Ordering::Relaxed) > 0 && self.callers + self.busy < work.threads
        })
    }
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    /// Work was opened.
    opened: Condvar,
    /// Whether a helper may join a work, for helpers that poll.
    joinable: AtomicBool,
}

/// The function by which an engine marks the calling thread as one that computes for it.
static MARK: OnceLock<fn()> = OnceLock::new();

/// Sets a function that each helper calls before it helps: an engine's, by which a wait in a caller's code finds out that it is on such a thread. The first one counts.
pub fn mark_helpers(mark: fn()) {
    let _ = MARK.set(mark);
}

/// The pool of the process. A child of `fork` has one of its own.
static POOL: PerProcess<Pool> = PerProcess::new();

/// Nothing panics while it holds a lock of this module, except an allocation that fails.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Lets helpers join `work`, and starts those that are missing.
    fn open(&'static self, work: Address, places: usize) {
        let mut state = lock(&self.state);
        while state.helpers < places {
            let name = format!("streamvm-cpu-{}", state.helpers);
            // Without the thread the call is slower, and right.
            if thread::Builder::new().name(name).spawn(move || self.run()).is_err() {
                break;
            }
            state.helpers += 1;
        }
        state.open.push(work);
        state.callers += 1;
        self.publish(state, places);
    }

    /// Tells helpers that poll whether they may join a work, and wakes up to `most` that sleep.
    fn publish(&self, state: MutexGuard<'_, State>, most: usize) {
        let joinable = state.joinable().is_some();
        self.joinable.store(joinable, Ordering::Release);
        let sleepers = if joinable { state.asleep.min(most) } else { 0 };
        drop(state);
        for _ in 0..sleepers {
            self.opened.notify_one();
        }
    }

    /// Lets no more helpers join `work`, and waits for those that have.
    fn close(&self, address: Address, work: &Work<'_>) {
        let mut state = lock(&self.state);
        state.open.retain(|&open| open != address);
        state.callers -= 1;
        self.publish(state, 1);
        let mut patience = Patience::default();
        while work.helpers.load(Ordering::Acquire) > 0 {
            patience.wait();
        }
    }

    /// Joins a work.
    fn join(&self, state: &mut State) -> Option<Address> {
        let place = state.joinable()?;
        let address = state.open[place];
        // SAFETY: it is open, and the lock is held, so it exists.
        let work = unsafe { &*address.0 };
        work.helpers.fetch_add(1, Ordering::Relaxed);
        work.places.fetch_sub(1, Ordering::Relaxed);
        state.busy += 1;
        self.joinable.store(state.joinable().is_some(), Ordering::Release);
        Some(address)
    }

    /// The life of a helper.
    fn run(&self) {
        use_every_core();
        let mut state = lock(&self.state);
        loop {
            let work = loop {
                if let Some(work) = self.join(&mut state) {
                    break work;
                }
                drop(state);
                let opened = self.poll();
                state = lock(&self.state);
                if !opened && state.joinable().is_none() {
                    state.asleep += 1;
                    state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.asleep -= 1;
                }
            };
            drop(state);
            if let Some(mark) = MARK.get() {
                mark();
            }
            // SAFETY: this helper is counted in `helpers`, so `close` has not returned.
            let work = unsafe { &*work.0 };
            work.help();
            // The last access: after it the calling thread may free the work.
            work.helpers.fetch_sub(1, Ordering::Release);
            state = lock(&self.state);
            state.busy -= 1;
        }
    }

    /// Polls for a work to join; false if there was none for [`SPIN`].
    fn poll(&self) -> bool {
        let end = Instant::now() + SPIN;
        loop {
            for _ in 0..POLLS {
                if self.joinable.load(Ordering::Acquire) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }
}

/// Lets the calling thread use every core that the main thread of the process may use. A thread begins with the cores of the thread that
/// has started it, which may be pinned to one.
#[cfg(target_os = "linux")]
fn use_every_core() {
    use rustix::process::getpid;
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    let set = sched_getaffinity(Some(getpid())).and_then(|cores| sched_setaffinity(None, &cores));
    if let Err(error) = set {
        log::warn!("a thread that helps with kernels stays on the cores of the thread that started it: {error}");
    }
}

/// As on Linux, where a thread can be pinned; elsewhere streamvm pins none.
#[cfg(not(target_os = "linux"))]
fn use_every_core() {}

/// Calls `part` once with each number below `parts`, in the calling thread and in as many helpers as [`set_threads`] allows. Returns when
/// all calls have returned. If a call panics, some parts may be left out, and the panic continues here.
pub fn split(parts: usize, part: &(dyn Fn(usize) + Sync)) {
    let places = THREADS.get().min(parts).saturating_sub(1);
    if places == 0 {
        return (0..parts).for_each(part);
    }
    let work = Work {
        part,
        parts,
        threads: THREADS.get(),
        next: AtomicUsize::new(0),
        places: AtomicUsize::new(places),
        helpers: AtomicUsize::new(0),
        panic: Mutex::new(None),
    };
    let address = Address(ptr::from_ref(&work).cast());
    let pool = POOL.get();
    pool.open(address, places);
    // A second open work would count this thread twice, and keep helpers out of both: `help` sets 1.
    let threads = THREADS.get();
    work.help();
    THREADS.set(threads);
    pool.close(address, &work);
    if let Some(panic) = work.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;

//! The callback thread: runs callers' callbacks and wakers. So neither the scheduler nor a thread context waits for user code, and
//! no lock of the engine is held while user code runs.
//!
//! The first callback starts the thread. The thread ends when it has been idle for [`LINGER`], or as soon as its queue is empty
//! once the engine is closed. A later callback starts another one. So callbacks may outlive the engine, and no thread does.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{Builder, Condvar, JoinHandle, Mutex, MutexGuard, engine_thread, unpoisoned};

type Callback = Box<dyn FnOnce() + Send>;

/// How long the idle thread waits for another callback: long enough that a program with frequent callbacks does not start a thread
/// each time, short enough that a program without callbacks soon has no such thread.
const LINGER: Duration = Duration::from_secs(1);

/// A queue of callbacks and the thread that runs them. Its lock is never held while a callback runs.
#[derive(Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Callback>,
    /// Whether a thread serves the queue.
    served: bool,
    thread: Option<JoinHandle<()>>,
    closed: bool,
    /// No thread is started, because the engine is stepped.
    stepped: bool,
    #[cfg(all(test, not(any(loom, shuttle))))]
    refuses_threads: bool,
}

impl Callbacks {
    /// Runs `callback` on the callback thread, after the callbacks before it. If no thread can be started, runs it on the calling
    /// thread.
    pub(crate) fn run(self: &Arc<Self>, callback: Callback) {
        if let Err((error, mut state)) = self.queue(callback) {
            state.served = true;
            drop(state);
            log::error!("no thread for callbacks ({error}); they run where they become due");
            self.serve_here();
        }
    }

    /// [`Callbacks::run`] for a calling thread that may hold locks of its caller: if no thread can be started, the callback waits until one is, or is dropped with the queue.
    pub(crate) fn run_elsewhere(self: &Arc<Self>, callback: Callback) {
        drop(self.queue(callback));
    }

    /// Queues `callback`, and starts a thread if none serves the queue.
    fn queue(self: &Arc<Self>, callback: Callback) -> Result<(), (io::Error, MutexGuard<'_, State>)> {
        let mut state = unpoisoned(self.state.lock());
        state.queue.push_back(callback);
        if !state.served && !state.stepped {
            match self.start(&state) {
                Ok(thread) => (state.served, state.thread) = (true, Some(thread)),
                Err(error) => return Err((error, state)),
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    #[cfg_attr(not(all(test, not(any(loom, shuttle)))), expect(unused_variables, reason = "tests refuse threads"))]
    fn start(self: &Arc<Self>, state: &State) -> io::Result<JoinHandle<()>> {
        #[cfg(all(test, not(any(loom, shuttle))))]
        if state.refuses_threads {
            return Err(io::Error::other("a test refuses threads"));
        }
        let me = self.clone();
        Builder::new().name("streamvm-callbacks".to_owned()).spawn(move || me.serve())
    }

    /// Runs the queued callbacks on the calling thread, and those added meanwhile. A callback that adds another one finds the queue
    /// served, so callbacks never nest, and the depth of the stack stays bounded.
    #[cold]
    fn serve_here(&self) {
        let _here = engine_thread::visit();
        let mut state = unpoisoned(self.state.lock());
        while let Some(callback) = state.queue.pop_front() {
            drop(state);
            run_guarded(callback);
            state = unpoisoned(self.state.lock());
        }
        state.served = false;
        drop(state);
        self.changed.notify_all();
    }

    /// From now on starts no thread; [`Callbacks::step`] runs the queued callbacks.
    pub(crate) fn be_stepped(&self) {
        unpoisoned(self.state.lock()).stepped = true;
    }

    /// Runs the oldest callback on the calling thread. False if there is none.
    pub(crate) fn step(&self) -> bool {
        let callback = unpoisoned(self.state.lock()).queue.pop_front();
        callback.map(run_guarded).is_some()
    }

    fn serve(&self) {
        engine_thread::enter();
        let mut state = unpoisoned(self.state.lock());
        loop {
            if let Some(callback) = state.queue.pop_front() {
                drop(state);
                run_guarded(callback);
                state = unpoisoned(self.state.lock());
            } else if state.closed {
                break;
            } else {
                let (locked, waited) = unpoisoned(self.changed.wait_timeout(state, LINGER));
                state = locked;
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
            }
        }
        state.served = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Lets the thread end as soon as its queue is empty.
    pub(crate) fn close(&self) {
        unpoisoned(self.state.lock()).closed = true;
        self.changed.notify_all();
    }

    /// Blocks, after [`Callbacks::close`], until every callback has run. False at the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = unpoisoned(self.state.lock());
        while state.served {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => unpoisoned(self.changed.wait(state)),
                Some(left) if left.is_zero() => return false,
                Some(left) => unpoisoned(self.changed.wait_timeout(state, left)).0,
            };
        }
        let thread = state.thread.take();
        drop(state);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the callback thread panicked");
        }
        true
    }
}

fn run_guarded(callback: Callback) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
        log::error!("a callback panicked: {}", crate::sync::panics::panic_text(payload));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn next(callbacks: &Arc<Callbacks>, ran: &Arc<AtomicUsize>, left: usize) {
        let (again, count) = (callbacks.clone(), ran.clone());
        callbacks.run(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            if left > 0 {
                next(&again, &count, left - 1);
            }
        }));
    }

    /// Regression: a callback that added the next one ran it inside itself, so that the stack overflowed.
    #[test]
    fn where_there_is_no_thread_a_callback_runs_after_the_one_that_asked_for_it() {
        let (callbacks, ran) = (Arc::new(Callbacks::default()), Arc::new(AtomicUsize::new(0)));
        unpoisoned(callbacks.state.lock()).refuses_threads = true;
        let (chain, count) = (callbacks.clone(), ran.clone());
        let small = std::thread::Builder::new().stack_size(128 << 10);
        let ended = small.spawn(move || next(&chain, &count, 100_000)).expect("a thread").join();
        assert_eq!((ended.is_ok(), ran.load(Ordering::Relaxed)), (true, 100_001));
        // Once threads can be started again, one serves the queue.
        unpoisoned(callbacks.state.lock()).refuses_threads = false;
        next(&callbacks, &ran, 9);
        callbacks.close();
        assert!(callbacks.wait(None));
        assert_eq!(ran.load(Ordering::Relaxed), 100_011);
    }

    #[test]
    fn where_there_is_no_thread_a_callback_that_must_run_elsewhere_waits_for_one() {
        let (callbacks, ran) = (Arc::new(Callbacks::default()), Arc::new(AtomicUsize::new(0)));
        unpoisoned(callbacks.state.lock()).refuses_threads = true;
        let count = ran.clone();
        callbacks.run_elsewhere(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(ran.load(Ordering::Relaxed), 0);
        unpoisoned(callbacks.state.lock()).refuses_threads = false;
        next(&callbacks, &ran, 0);
        callbacks.close();
        assert!(callbacks.wait(None));
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    use loom::thread;

    /// When the thread gives up serving.
    #[derive(Copy, Clone, PartialEq)]
    enum Ends {
        /// Under the lock under which it saw the queue empty, as [`Callbacks`](super::Callbacks) does.
        AtOnce,
        /// After it has released that lock.
        Later,
    }

    #[derive(Default)]
    struct State {
        queued: usize,
        served: bool,
        ran: usize,
    }

    #[derive(Default)]
    struct Model {
        state: Mutex<State>,
        changed: Condvar,
    }

    impl Model {
        fn state(&self) -> MutexGuard<'_, State> {
            self.state.lock().expect("nobody panics")
        }

        fn run(model: &Arc<Model>, ends: Ends) {
            let mut state = model.state();
            state.queued += 1;
            if !state.served {
                state.served = true;
                let server = model.clone();
                thread::spawn(move || server.serve(ends));
            }
            drop(state);
            model.changed.notify_all();
        }

        /// The thread. It never lingers here, because only ending with an empty queue can go wrong.
        fn serve(&self, ends: Ends) {
            let mut state = self.state();
            while state.queued > 0 {
                state.queued -= 1;
                drop(state);
                state = self.state();
                state.ran += 1;
            }
            if ends == Ends::Later {
                drop(state);
                state = self.state();
            }
            state.served = false;
            drop(state);
            self.changed.notify_all();
        }

        fn wait(&self) {
            let mut state = self.state();
            while state.served {
                state = self.changed.wait(state).expect("nobody panics");
            }
        }
    }

    /// Two callbacks of two threads; once no thread serves the queue, both must have run.
    fn all_run(ends: Ends) {
        loom::model(move || {
            let model = Arc::new(Model::default());
            let other = {
                let model = model.clone();
                thread::spawn(move || Model::run(&model, ends))
            };
            Model::run(&model, ends);
            other.join().expect("it does not panic");
            model.wait();
            assert_eq!(model.state().ran, 2, "callbacks that ran");
        });
    }

    #[test]
    fn loom_every_callback_runs_before_the_thread_ends() {
        all_run(Ends::AtOnce);
    }

    #[test]
    #[should_panic(expected = "callbacks that ran")]
    fn loom_a_thread_that_notes_its_end_too_late_leaves_a_callback() {
        all_run(Ends::Later);
    }
}

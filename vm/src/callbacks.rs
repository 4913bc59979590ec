//! The callback thread: runs callers' callbacks and wakers, so that neither the scheduler nor a thread context waits
//! for user code, and no lock of the engine is held while it runs.
//!
//! The thread is started by the first callback and ends by itself: when it has been idle for a while, or at once when
//! the engine is closed. A callback after that starts another. So callbacks outlive the engine, and no thread does.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::engine_thread;
use crate::sync::unpoisoned;

type Callback = Box<dyn FnOnce() + Send>;

/// How long the thread waits for another callback: long enough that a program that asks often does not start a thread
/// each time, short enough that one that has stopped asking keeps none.
const LINGER: Duration = Duration::from_secs(1);

/// A queue of callbacks and the thread that runs them.
#[derive(Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Callback>,
    /// A thread serves the queue.
    served: bool,
    thread: Option<JoinHandle<()>>,
    closed: bool,
    /// No thread is started: somebody steps.
    stepped: bool,
}

impl Callbacks {
    /// Runs `callback` on the callback thread, after those before it.
    pub(crate) fn run(self: &Arc<Self>, callback: Callback) {
        let mut state = unpoisoned(self.state.lock());
        state.queue.push_back(callback);
        if !state.served && !state.stepped {
            let me = self.clone();
            match Builder::new().name("streamvm-callbacks".to_owned()).spawn(move || me.serve()) {
                Ok(thread) => {
                    state.thread = Some(thread);
                    state.served = true;
                }
                Err(error) => {
                    log::error!("no thread for callbacks ({error}); they run where they become due");
                    let queue = std::mem::take(&mut state.queue);
                    drop(state);
                    queue.into_iter().for_each(run_guarded);
                    return;
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// From now on starts no thread; [`Callbacks::step`] runs what is queued.
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

    /// Waits, after [`Callbacks::close`], until every callback has run. False at the deadline.
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
        log::error!("a callback panicked: {}", crate::run::panic_text(payload));
    }
}

//! The callback thread: runs callers' callbacks and wakers, so that neither the scheduler nor a thread context waits
//! for user code, and no lock of the engine is held while it runs.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};

use crate::engine_thread;
use crate::sync::unpoisoned;

type Callback = Box<dyn FnOnce() + Send>;

/// A queue of callbacks and the thread that runs them, which is started by the first.
#[derive(Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Callback>,
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

impl Callbacks {
    /// Runs `callback` on the callback thread, after those before it.
    pub(crate) fn run(self: &Arc<Self>, callback: Callback) {
        let mut state = unpoisoned(self.state.lock());
        state.queue.push_back(callback);
        if state.thread.is_none() && !state.closed {
            let me = self.clone();
            match Builder::new().name("streamvm-callbacks".to_owned()).spawn(move || me.serve()) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => log::error!("no thread for callbacks ({error}); they run when the engine is dropped"),
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    fn serve(&self) {
        engine_thread::enter();
        loop {
            let mut state = unpoisoned(self.state.lock());
            let callback = loop {
                match state.queue.pop_front() {
                    Some(callback) => break callback,
                    None if state.closed => return,
                    None => state = unpoisoned(self.changed.wait(state)),
                }
            };
            drop(state);
            run_guarded(callback);
        }
    }

    /// Lets the thread end once its queue is empty; returns it for joining.
    pub(crate) fn close(&self) -> Option<JoinHandle<()>> {
        let mut state = unpoisoned(self.state.lock());
        state.closed = true;
        let thread = state.thread.take();
        let rest = if thread.is_none() { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        self.changed.notify_all();
        rest.into_iter().for_each(run_guarded);
        thread
    }
}

fn run_guarded(callback: Callback) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
        log::error!("a callback panicked: {}", crate::run::panic_text(payload));
    }
}

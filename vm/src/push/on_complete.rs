//! Functions that are over later than they return: their handles, and where their instructions wait meanwhile.
//!
//! The function is called by a worker like any other, with a handle. If that has not been used when the function returns, the
//! instruction is parked, and the worker goes on. Whoever uses the handle gives the instruction back to the pool, with what it
//! is to answer in place of its function; a worker then carries it out once more, and it passes like any other. So the thread
//! that completes does little more than a push into a queue, and runs no code of anybody's.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_ep::FnError;
use streamvm_instructions::Deadline;

use crate::fork::Fork;
use crate::job::Job;
use crate::pool::Pool;
use crate::push::Answer;
use crate::run::panic_text;
use crate::slot::Slot;
use crate::sync::{Condvar, Mutex, unpoisoned};

/// What says that an asynchronous function is over; see [`Vm::push_async`](crate::Vm::push_async). `Send`: it may be moved to
/// any thread, and used there once. Dropped unused it fails the function. In a forked child neither does anything: the function
/// goes on in the parent alone.
#[must_use = "dropped, it fails its function"]
pub struct OnComplete {
    later: Option<Arc<Later>>,
}

impl OnComplete {
    /// The function is over, with this result: an error fails what it should have written. Never blocks, and may be called on
    /// any thread, also after the engine was closed; it runs nothing that waits for the function here.
    pub fn complete(mut self, result: Result<(), FnError>) {
        if let Some(later) = self.take() {
            later.complete(result);
        }
    }

    /// What it completes, once. None in a child, where it is leaked: its lock may be held by a thread that is not there.
    fn take(&mut self) -> Option<Arc<Later>> {
        let later = self.later.take()?;
        if later.fork.is_child() {
            std::mem::forget(later);
            return None;
        }
        Some(later)
    }
}

impl Drop for OnComplete {
    fn drop(&mut self) {
        if let Some(later) = self.take() {
            later.complete(Err("its handle was dropped without completing it".into()));
        }
    }
}

impl fmt::Debug for OnComplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnComplete").finish_non_exhaustive()
    }
}

/// One asynchronous function that was called.
pub(crate) struct Later {
    /// Whether this process is the one that runs the function.
    fork: Fork,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// What the function's panic said: it fails by that, whatever the handle says.
    panic: Option<String>,
}

/// `Called` -> `Over` -> `Answered`, or `Called` -> `Parked` -> `Answered`.
#[derive(Default)]
enum Stage {
    /// Neither has the handle been used nor the instruction been parked.
    #[default]
    Called,
    /// The handle was used, with this result.
    Over(Result<(), FnError>),
    /// The instruction waits here for the handle, to go back to its pool.
    Parked(Slot<Job>, Arc<Pool>),
    /// The instruction has the result.
    Answered,
}

impl Later {
    /// Calls `f` with a handle, for an engine of the process that `fork` tells. What is over when `f` returns needs nothing more.
    pub(crate) fn call(fork: Fork, f: impl FnOnce(OnComplete)) -> Result<(), FnError> {
        let later = Arc::new(Later { fork, state: Mutex::default(), changed: Condvar::new() });
        let handle = OnComplete { later: Some(later.clone()) };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| f(handle))) {
            // Whoever has the handle may still be at work, so what follows waits for that all the same.
            let text = panic_text(payload);
            unpoisoned(later.state.lock()).panic = Some(text);
        }
        let answer = later.answer();
        match answer {
            Some(answer) => answer(),
            None => Err(Box::new(Answer::Later(later))),
        }
    }

    /// What the instruction is to answer, if the handle was used: told once.
    fn answer(&self) -> Option<impl FnOnce() -> Result<(), FnError> + Send + 'static + use<>> {
        let mut state = unpoisoned(self.state.lock());
        match std::mem::replace(&mut state.stage, Stage::Answered) {
            Stage::Over(result) => Some(answer(result, state.panic.take())),
            other => {
                state.stage = other;
                None
            }
        }
    }

    /// Keeps the instruction until the handle is used, and then gives it back to `pool`: at once if it was.
    pub(crate) fn park(&self, mut job: Slot<Job>, pool: &Arc<Pool>) {
        let mut state = unpoisoned(self.state.lock());
        match std::mem::replace(&mut state.stage, Stage::Answered) {
            Stage::Over(result) => {
                let panic = state.panic.take();
                drop(state);
                job.resume(answer(result, panic));
                pool.bring(job);
            }
            _ => {
                pool.incomplete.begin(&job);
                state.stage = Stage::Parked(job, pool.clone());
            }
        }
    }

    /// Waits until the handle is used; at the deadline the function fails.
    pub(crate) fn block(&self, job: &mut Job, deadline: Option<Deadline>) {
        let mut state = unpoisoned(self.state.lock());
        loop {
            if let Stage::Over(_) = state.stage {
                drop(state);
                return self.answer().into_iter().for_each(|answer| job.resume(answer));
            }
            let left = deadline.map(|deadline| deadline.at().saturating_duration_since(Instant::now()));
            state = match left {
                None => unpoisoned(self.changed.wait(state)),
                Some(Duration::ZERO) => {
                    state.stage = Stage::Answered;
                    return job
                        .resume(|| Err("it was not completed by the deadline of the thread that runs it".into()));
                }
                Some(left) => unpoisoned(self.changed.wait_timeout(state, left)).0,
            };
        }
    }

    fn complete(&self, result: Result<(), FnError>) {
        let mut state = unpoisoned(self.state.lock());
        match std::mem::replace(&mut state.stage, Stage::Answered) {
            Stage::Called => {
                state.stage = Stage::Over(result);
                self.changed.notify_all();
            }
            Stage::Parked(mut job, pool) => {
                let panic = state.panic.take();
                drop(state);
                pool.incomplete.end(&job);
                job.resume(answer(result, panic));
                pool.bring(job);
            }
            // Who waited has given up; there is one handle, so nobody else was here.
            Stage::Over(_) | Stage::Answered => {
                drop(state);
                drop(result);
            }
        }
    }
}

/// What an instruction answers whose function panicked, maybe, and whose handle said this.
fn answer(result: Result<(), FnError>, panic: Option<String>) -> impl FnOnce() -> Result<(), FnError> + Send + 'static {
    move || match panic {
        Some(text) => resume_unwind(Box::new(text)),
        None => result,
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").finish_non_exhaustive()
    }
}

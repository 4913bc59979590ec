//! Deferred functions: functions that complete later than they return.
//!
//! A worker calls such a function with a handle. If the handle was not used when the function returns, the task is parked here and
//! the worker goes on. The thread that uses the handle gives the task back to the pool, with the result in place of its function. A
//! worker then runs the task once more, and it passes like any other. So the thread that completes does little more than a push
//! into a queue, and runs no user code.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_ep::FnError;
use streamvm_instructions::Deadline;

use crate::dispatch::function_outcome::FunctionOutcome;
use crate::dispatch::pool::Pool;
use crate::queue::node::NodeBox;
use crate::sync::fork::Fork;
use crate::sync::panics::panic_text;
use crate::sync::{Condvar, Mutex, unpoisoned};
use crate::tasks::task::Task;

/// One asynchronous function that was called. Its lock guards the stage; no user code runs under it.
pub(crate) struct DeferredFunction {
    /// Identifies the process that runs the function.
    pub(crate) fork: Fork,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// The message of the function's panic. The function fails with it, whatever result the handle gives.
    panic: Option<String>,
}

/// `Called` -> `Over` -> `Answered`, or `Called` -> `Parked` -> `Answered`, or `Called` -> `Answered` at a deadline.
#[derive(Default)]
enum Stage {
    /// The handle was not used, and the task is not parked.
    #[default]
    Called,
    /// The handle was used, with this result.
    Over(Result<(), FnError>),
    /// The task waits here for the handle, to go back to its pool.
    Parked(NodeBox<Task>, Arc<Pool>),
    /// The task has its result.
    Answered,
}

/// Why a function fails in inline mode whose handle was not used when it returned.
const NOT_COMPLETED_INLINE: &str = "its handle was not used when it returned, and in Mode::Inline the thread that pushed it runs nothing meanwhile; use the \
                                    handle before it returns, or enter a TimeLimit within which another thread uses it, or use Mode::Threaded";

impl DeferredFunction {
    /// Calls `f` with a handle, in an engine of the process that `fork` identifies. If the handle is used before `f` returns, this
    /// returns the result.
    ///
    /// # Errors
    /// The function's own error, or [`FunctionOutcome::Deferred`] if the handle is not used yet.
    ///
    /// # Panics
    /// If `f` panicked and its handle was used: with the message of that panic.
    pub(crate) fn call(fork: Fork, f: impl FnOnce(Arc<DeferredFunction>)) -> Result<(), FnError> {
        let later = Arc::new(DeferredFunction { fork, state: Mutex::default(), changed: Condvar::new() });
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| f(later.clone()))) {
            // The holder of the handle may still be at work, so the task waits for it in spite of the panic.
            let text = panic_text(payload);
            unpoisoned(later.state.lock()).panic = Some(text);
        }
        let answer = later.answer();
        match answer {
            Some(answer) => answer(),
            None => Err(Box::new(FunctionOutcome::Deferred(later))),
        }
    }

    /// The result of the task as a function, if the handle was used. Returned once.
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

    /// Keeps the task until the handle is used, and then gives it back to `pool`; at once if it was used before.
    pub(crate) fn park(&self, mut task: NodeBox<Task>, pool: &Arc<Pool>) {
        let mut state = unpoisoned(self.state.lock());
        match std::mem::replace(&mut state.stage, Stage::Answered) {
            Stage::Over(result) => {
                let panic = state.panic.take();
                drop(state);
                task.resume(answer(result, panic));
                pool.inject(task);
            }
            _ => {
                pool.incomplete.begin(&task);
                state.stage = Stage::Parked(task, pool.clone());
            }
        }
    }

    /// Blocks until the handle is used, but at most until the deadline, and gives the task its result. At the deadline the function fails; without a deadline it
    /// fails at once, because the thread that runs it may be the one that would use the handle.
    pub(crate) fn block(&self, task: &mut Task, deadline: Option<Deadline>) {
        let mut state = unpoisoned(self.state.lock());
        loop {
            if let Stage::Over(_) = state.stage {
                drop(state);
                return self.answer().into_iter().for_each(|answer| task.resume(answer));
            }
            let left = deadline.map(|deadline| deadline.at().saturating_duration_since(Instant::now()));
            let why = match left {
                None => NOT_COMPLETED_INLINE,
                Some(Duration::ZERO) => "it was not completed by the deadline of the thread that runs it",
                Some(left) => {
                    state = unpoisoned(self.changed.wait_timeout(state, left)).0;
                    continue;
                }
            };
            state.stage = Stage::Answered;
            return task.resume(|| Err(why.into()));
        }
    }

    /// The handle was used, with this result. Called once. Does not block, and runs no code that waits for the function.
    pub(crate) fn complete(&self, result: Result<(), FnError>) {
        let mut state = unpoisoned(self.state.lock());
        match std::mem::replace(&mut state.stage, Stage::Answered) {
            Stage::Called => {
                state.stage = Stage::Over(result);
                self.changed.notify_all();
            }
            Stage::Parked(mut task, pool) => {
                let panic = state.panic.take();
                drop(state);
                pool.incomplete.end(&task);
                task.resume(answer(result, panic));
                pool.inject(task);
            }
            // `block` gave up at its deadline. There is one handle, so this is the only completion.
            Stage::Over(_) | Stage::Answered => {
                drop(state);
                drop(result);
            }
        }
    }
}

/// The function by which a task ends: it resumes the panic of the called function, if there was one, or returns the handle's
/// result.
fn answer(result: Result<(), FnError>, panic: Option<String>) -> impl FnOnce() -> Result<(), FnError> + Send + 'static {
    move || match panic {
        Some(text) => resume_unwind(Box::new(text)),
        None => result,
    }
}

impl fmt::Debug for DeferredFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredFunction").finish_non_exhaustive()
    }
}

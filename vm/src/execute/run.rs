//! Running one task, in this order: check for poison, run on the device's stream, enter the failure, drop the captures, publish. A panic of
//! a kernel or of a caller's function is caught here and becomes the failure of the task.
//!
//! When a task comes here, its predecessors on the stream and all its waits have passed. So its number may be published whatever the
//! outcome: stream order, clocks and the reuse of memory stay correct.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use streamvm_ep::{self as ep, FnContext, Operation, StepNote, Unfinished};
use streamvm_instructions::{Cause, Deadline, Failure, Version};
use streamvm_stream::StreamType;
use streamvm_stream::mutant::Mutant;

use crate::dispatch::context_handle::ContextHandle;
use crate::dispatch::deferred_function::DeferredFunction;
use crate::dispatch::function_outcome::FunctionOutcome;
use crate::execute::completion::launched_streams;
use crate::execute::environment::Environment;
use crate::execute::poll_pace::PollPace;
use crate::execute::stream_runner::Runner;
use crate::progress::failures::Failures;
use crate::progress::stream_state::StreamState;
use crate::sync::panics::panic_text;
use crate::sync::{Ordering, unpoisoned};
use crate::tasks::counters::Ended;
use crate::tasks::spans;
use crate::tasks::task::{Action, CleanUp, Task};

/// Runs `task` on its stream and publishes that it has passed. Before that, this thread enters the outcome and drops the captures. If the task has
/// started an operation, this returns it, and the task has not passed: once the operation [is over](is_over), the caller must [`finish`] the task.
#[must_use = "the task has not passed"]
#[inline(always)]
pub(crate) fn run(
    task: &mut Task,
    stream_state: &StreamState,
    runner: &mut Runner,
    env: &Environment,
    context: &ContextHandle,
) -> Option<Box<dyn Operation>> {
    match run_or_skip(task, stream_state, runner, env) {
        None => {}
        Some(Rest::Deferred(deferred)) => complete_inline(task, deferred, stream_state, runner, env),
        Some(Rest::Operation(operation)) => return Some(operation),
    }
    finish(task, stream_state, env, context);
    None
}

/// Polls an operation until it is over. Blocks.
#[cold]
pub(crate) fn complete_operation(
    task: &Task,
    mut operation: Box<dyn Operation>,
    stream_state: &StreamState,
    env: &Environment,
) {
    let mut pace = PollPace::default();
    while !is_over(&mut *operation, task, stream_state, env) {
        pace.pause();
    }
    caught(|| drop(operation));
}

/// Whether an operation is over. If it has failed, so has its task.
pub(crate) fn is_over(
    operation: &mut dyn Operation,
    task: &Task,
    stream_state: &StreamState,
    env: &Environment,
) -> bool {
    match poll(operation) {
        Ok(over) => over,
        Err(error) => {
            fail_operation(error, task, stream_state, env);
            true
        }
    }
}

/// Enters the error with which the operation of a task has ended.
#[cold]
pub(crate) fn fail_operation(error: ep::FnError, task: &Task, stream_state: &StreamState, env: &Environment) {
    match loses_device(error) {
        Ok(reason) => lose_devices(&reason, stream_state, env),
        Err(error) => env.failures.fail(task.order, failed_operation(error, task, stream_state)),
    }
}

/// Why the device of an operation is lost, if its error says so.
///
/// # Errors
/// The error, if it is another one.
pub(crate) fn loses_device(error: ep::FnError) -> Result<String, ep::FnError> {
    match error.downcast::<ep::Error>() {
        Ok(error) => match *error {
            ep::Error::DeviceLost { reason, .. } => Ok(reason),
            error => Err(error.into()),
        },
        Err(error) => Err(error),
    }
}

/// Commands of a stream go on for ever. All devices of its kind are lost, because commands of the others may wait for them, and memory that they may use is never used
/// again.
#[cold]
pub(crate) fn lose_devices(reason: &str, stream_state: &StreamState, env: &Environment) {
    let (device, kind) = (stream_state.key.device, stream_state.key.device.kind);
    env.devices.iter().filter(|device| device.id().kind == kind).for_each(|device| device.lose(reason));
    for (_, in_flight) in launched_streams(env).filter(|(other, _)| other.key.device.kind == kind) {
        in_flight.lose_for_ever(ep::Error::DeviceLost { device, reason: reason.to_owned() });
    }
}

/// Polls an operation; a panic becomes an error.
pub(crate) fn poll(operation: &mut dyn Operation) -> Result<bool, ep::FnError> {
    catch_unwind(AssertUnwindSafe(|| operation.poll())).unwrap_or_else(|payload| Err(panicked(payload)))
}

/// Looks at an operation; a panic becomes an error.
pub(crate) fn look(operation: &mut dyn Operation, has_passed: bool) -> Result<(), ep::FnError> {
    catch_unwind(AssertUnwindSafe(|| operation.look(has_passed))).unwrap_or_else(|payload| Err(panicked(payload)))
}

fn panicked(payload: Box<dyn Any + Send>) -> ep::FnError {
    ep::FnError::from(FunctionOutcome::Failed(Cause::Panic(panic_text(payload))))
}

/// The failure of a task whose operation has ended with this error.
#[cold]
pub(crate) fn failed_operation(error: ep::FnError, task: &Task, stream_state: &StreamState) -> Arc<Failure> {
    match outcome_of(ep::CallError::Function(error), task, stream_state) {
        Outcome::Failed(failure) => failure,
        // An operation is over with its error, whatever that is.
        Outcome::Fine | Outcome::NotOver(_) => {
            let cause = Cause::Function("its operation has answered that another one goes on".to_owned());
            Arc::new(failure(task, stream_state, cause))
        }
    }
}

/// Inline mode: blocks until the asynchronous function has completed, because no other thread could continue the task.
#[cold]
fn complete_inline(
    task: &mut Task,
    deferred: Arc<DeferredFunction>,
    stream_state: &StreamState,
    runner: &mut Runner,
    env: &Environment,
) {
    deferred.block(task, Deadline::current());
    let _none = run_or_skip(task, stream_state, runner, env);
}

/// Drops what `task` holds and publishes that it has passed. The caller has entered its outcome.
#[inline(always)]
pub(crate) fn finish(task: &mut Task, stream_state: &StreamState, env: &Environment, context: &ContextHandle) {
    release_and_account(task, stream_state, env, context);
    stream_state.pass(task.point.seq);
}

/// Drops what `task` holds, and updates everything that must be up to date before the task is published as passed.
#[inline(always)]
pub(crate) fn release_and_account(
    task: &mut Task,
    stream_state: &StreamState,
    env: &Environment,
    context: &ContextHandle,
) {
    let (seq, bytes) = (task.point.seq, task.bytes);
    if !task.is_clear() {
        if env.stamps || env.has_spans() || !task.versions().is_empty() {
            note_outcome(task, stream_state, env, context);
        }
        clear_caught(task);
    }
    if bytes > 0 {
        // Only one thread at a time writes this: the holder of the run lock, or the worker. Release: a reader of this value also sees the
        // charge before it. A reader of the number published below sees this value.
        let retired = &context.retired_bytes;
        retired.store(retired.load(Ordering::Relaxed) + bytes, Ordering::Release);
    }
    if let Some(observer) = &env.observer {
        observer.passes(stream_state.id, seq);
    }
}

/// Updates versions and profiles for an instruction whose outcome is entered.
#[inline(never)]
fn note_outcome(task: &mut Task, stream_state: &StreamState, env: &Environment, context: &ContextHandle) {
    if let [_, ..] = task.versions()
        && !env.failures.is_known(task.point)
    {
        task.versions().iter().for_each(Version::advance);
    }
    // Workers of an unordered stream share its note.
    let steps = stream_state.step_note.as_deref().filter(|_| !task.point.stream.is_unordered());
    count_op(task, env, context, steps);
    if env.has_spans() && ended(task, env).0 == Ended::Failed {
        tell_failed(task);
    }
}

/// The span of a task that has failed itself says so.
#[cold]
pub(crate) fn tell_failed(task: &mut Task) {
    if let Some(cold) = task.cold() {
        cold.span.fail();
    }
}

/// Counts an instruction in the profile of the context whose thread has run, launched or skipped it, and notes it for a trace, with the `steps` that it has run.
pub(crate) fn count_op(task: &mut Task, env: &Environment, context: &ContextHandle, steps: Option<&StepNote>) {
    if env.stamps
        && let Some(stamp) = task.take_stamp()
    {
        let (ended, root) = ended(task, env);
        if let Some(timeline) = &env.timeline {
            timeline.ran(context.events(), (task, steps), stamp, (ended, root));
        }
        if !env.profiles || !stamp.runs {
            return;
        }
        let counted = unpoisoned(context.counters().lock()).add(task, stamp, ended);
        if let Err(reason) = counted {
            log::error!("a duration of {} is not counted: {reason}", task.name());
        }
    }
}

/// How a task has ended, as far as is known, and whose failure it passes on.
pub(crate) fn ended(task: &Task, env: &Environment) -> (Ended, Option<Arc<Failure>>) {
    // A failure that a clean-up passes on is another instruction's failure.
    match env.failures.poison(std::iter::once(task.point)) {
        Some(root) if root.point == task.point => (Ended::Failed, None),
        Some(root) => (Ended::PassedOn, Some(root)),
        None => (Ended::Fine, None),
    }
}

/// Runs or launches `task`, or skips it because of a failed input, and enters its failure if it has one already. What it returns must be over
/// before the task is: after the handle of a deferred function was used, the caller calls this once more; an operation is polled ([`is_over`]).
#[must_use = "the task is not complete"]
#[inline(always)]
pub(crate) fn run_or_skip(
    task: &mut Task,
    stream_state: &StreamState,
    runner: &mut Runner,
    env: &Environment,
) -> Option<Rest> {
    let failures = &env.failures;
    let too_early = |task: &Task| {
        if env.planted.is(Mutant::NotifiedBeforePublished) && stream_state.in_flight.is_none() {
            stream_state.pass(task.point.seq);
        }
    };
    // Tested inline first, because mostly nothing has failed.
    if failures.any()
        && let Some(root) = failures.poison(task.reads())
    {
        if let Some(clean_up) = task.clean_up() {
            return clean(task, stream_state, runner, env, (clean_up, root));
        }
        log::debug!("{} on {} is skipped: {root}", task.name(), stream_state.key);
        if stream_state.key.stream_type == StreamType::Collective
            && matches!(task.action, Action::Function | Action::Raw)
        {
            tell_skipped(task);
        }
        too_early(task);
        if !env.planted.is(Mutant::PoisonNotCarried) {
            failures.pass_on(task.point, task.order, root);
        }
    } else if task.action != Action::Nothing {
        if env.stamps {
            task.stamp_start();
        }
        let inside = if env.has_spans() { spans::enter(task, stream_state.key) } else { None };
        let outcome = attempt(task, stream_state, runner);
        spans::leave(task, inside);
        match outcome {
            Outcome::Fine => {}
            Outcome::NotOver(rest) => return Some(rest),
            Outcome::Failed(failure) => {
                too_early(task);
                failures.fail(task.order, failure);
            }
        }
    }
    None
}

/// Tells a function on a collective stream that it is skipped: other ranks wait for it.
#[cold]
fn tell_skipped(task: &mut Task) {
    caught(|| drop(task.function.call(&mut FnContext::of_skipped())));
}

/// Runs a clean-up although an input has failed because of `root`.
#[cold]
fn clean(
    task: &mut Task,
    stream_state: &StreamState,
    runner: &mut Runner,
    env: &Environment,
    (clean_up, root): (CleanUp, Arc<Failure>),
) -> Option<Rest> {
    if env.stamps {
        task.stamp_start();
    }
    let inside = if env.has_spans() { spans::enter(task, stream_state.key) } else { None };
    let outcome = attempt(task, stream_state, runner);
    spans::leave(task, inside);
    match outcome {
        Outcome::Fine if clean_up == CleanUp::Heals => {}
        Outcome::Fine => env.failures.pass_on(task.point, task.order, root),
        Outcome::NotOver(rest) => return Some(rest),
        Outcome::Failed(failure) => env.failures.fail(task.order, failure),
    }
    None
}

/// Skips `task`, whose device is lost.
#[cold]
pub(crate) fn refuse(task: &Task, stream_state: &StreamState, lost: ep::Error, failures: &Failures) {
    match failures.poison(task.reads()) {
        Some(root) => failures.pass_on(task.point, task.order, root),
        None => failures.fail(task.order, Arc::new(failure(task, stream_state, Cause::Device(lost)))),
    }
}

/// The failure of `task` because of `cause`.
#[cold]
pub(crate) fn failure(task: &Task, stream_state: &StreamState, cause: Cause) -> Failure {
    let (point, number) = (task.point, task.number());
    let failure =
        Failure { point, number, stream: stream_state.key, what: task.name().to_owned(), site: task.site, cause };
    log::debug!("{failure}");
    failure
}

/// Drops what a task holds. A panic in the drop of a capture is only logged, because no waiter depends on it.
#[inline]
pub(crate) fn clear(task: &mut Task) {
    if !task.is_clear() {
        clear_caught(task);
    }
}

#[inline(never)]
fn clear_caught(task: &mut Task) {
    caught(|| task.clear());
}

/// Drops what a failed call has left of its function. It is dropped now and by this thread, because the task may be in flight for long.
#[cold]
pub(crate) fn drop_function(task: &mut Task) {
    caught(|| task.function.clear());
}

/// Drops what code of a caller has made; a panic is logged.
pub(crate) fn caught(drops: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(drops)) {
        log::error!("dropping the captures of an instruction panicked: {}", panic_text(payload));
    }
}

/// The outcome of running a task.
enum Outcome {
    Fine,
    Failed(Arc<Failure>),
    /// Its function has returned, and the task is not over.
    NotOver(Rest),
}

/// The work on which a task waits after its function has returned.
pub(crate) enum Rest {
    /// The function was called with a handle; the task is over when that is used.
    Deferred(Arc<DeferredFunction>),
    /// The function has started an operation; the task is over when that is.
    Operation(Box<dyn Operation>),
}

/// Runs the action of `task`. An error or a panic becomes a failure, and what is left of the caller's function is dropped.
#[inline(always)]
fn attempt(task: &mut Task, stream_state: &StreamState, runner: &mut Runner) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| runner.run(task))) {
        Ok(Ok(())) => Outcome::Fine,
        Ok(Err(error)) => {
            drop_function(task);
            outcome_of(error, task, stream_state)
        }
        Err(payload) => {
            drop_function(task);
            Outcome::Failed(Arc::new(failure(task, stream_state, Cause::Panic(panic_text(payload)))))
        }
    }
}

#[cold]
fn outcome_of(error: ep::CallError, task: &Task, stream_state: &StreamState) -> Outcome {
    let failed =
        |error: ep::FnError| Outcome::Failed(Arc::new(failure(task, stream_state, Cause::Function(text_of(error)))));
    let error = match error {
        ep::CallError::Device(error) => {
            return Outcome::Failed(Arc::new(failure(task, stream_state, Cause::Device(error))));
        }
        ep::CallError::Function(error) => error,
    };
    match error.downcast::<FunctionOutcome>().map(|answer| *answer) {
        Ok(FunctionOutcome::Deferred(deferred)) => Outcome::NotOver(Rest::Deferred(deferred)),
        Ok(FunctionOutcome::Failed(cause)) => Outcome::Failed(Arc::new(failure(task, stream_state, cause))),
        Ok(FunctionOutcome::Part { name, site, cause }) => {
            let what = name.into_owned();
            Outcome::Failed(Arc::new(Failure { what, site, ..failure(task, stream_state, cause) }))
        }
        Err(error) => match error.downcast::<Unfinished>() {
            Ok(unfinished)
                if stream_state.in_flight.is_none() || stream_state.key.stream_type == StreamType::Collective =>
            {
                Outcome::NotOver(Rest::Operation(unfinished.0))
            }
            Ok(unfinished) => failed(unfinished),
            Err(error) => failed(error),
        },
    }
}

/// The text of an error and its sources. Formatting and dropping the error are user code, so panics are caught.
pub(crate) fn text_of(error: ep::FnError) -> String {
    let text = catch_unwind(AssertUnwindSafe(move || ep::error_chain(&*error)));
    text.unwrap_or_else(|payload| format!("an error whose text could not be read ({})", panic_text(payload)))
}

//! Running one job: poison, policy, failure, captures, completion, in this order.
//!
//! By the time a job comes here its predecessors on the stream and all its waits have passed. So whatever its outcome,
//! publishing its number keeps what order, clocks and reuse of memory go by true.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use streamvm_ep as ep;
use streamvm_instructions::{Cause, Deadline, Failure, Version};
use streamvm_stream::mutant::Mutant;

use crate::context_shared::ContextShared;
use crate::entry::StreamEntry;
use crate::failures::Failures;
use crate::job::{CleanUp, Job, Task};
use crate::push::{Answer, Later};
use crate::runner::Runner;
use crate::shared::Shared;
use crate::sync::{Ordering, unpoisoned};
use crate::tally::Ended;

/// Runs `job` on its stream and publishes that it has passed. The outcome is entered before that, and the captures are
/// dropped before that, by this thread.
#[inline(always)]
pub(crate) fn run(job: &mut Job, entry: &StreamEntry, runner: &mut Runner, vm: &Shared, context: &ContextShared) {
    if let Some(later) = carry_out(job, entry, runner, vm) {
        go_on(job, later, entry, runner, vm);
    }
    finish(job, entry, vm, context);
}

/// Everything in order, and nobody else to go on meanwhile: inline mode.
#[cold]
fn go_on(job: &mut Job, later: Arc<Later>, entry: &StreamEntry, runner: &mut Runner, vm: &Shared) {
    later.block(job, Deadline::current());
    let _over = carry_out(job, entry, runner, vm);
}

/// Drops what `job` holds and publishes that it has passed. Its outcome is entered.
#[inline(always)]
pub(crate) fn finish(job: &mut Job, entry: &StreamEntry, vm: &Shared, context: &ContextShared) {
    settle(job, entry, vm, context);
    entry.pass(job.point.seq);
}

/// Drops what `job` holds: what is to be done before it is published that it has passed.
#[inline(always)]
pub(crate) fn settle(job: &mut Job, entry: &StreamEntry, vm: &Shared, context: &ContextShared) {
    let (seq, bytes) = (job.point.seq, job.bytes);
    if !job.is_clear() {
        if vm.profiles || !job.versions().is_empty() {
            note_over(job, vm, context);
        }
        clear_caught(job);
    }
    if bytes > 0 {
        // Who has the turn is the only writer. Who sees it sees the charge before it, and who sees the number below sees it.
        let retired = &context.retired_bytes;
        retired.store(retired.load(Ordering::Relaxed) + bytes, Ordering::Release);
    }
    if let Some(monitor) = &vm.monitor {
        monitor.passes(entry.id, seq);
    }
}

/// Counts what is to be counted of an instruction whose outcome is entered.
#[inline(never)]
fn note_over(job: &mut Job, vm: &Shared, context: &ContextShared) {
    if let [_, ..] = job.versions()
        && !vm.failures.is_known(job.point)
    {
        job.versions().iter().for_each(Version::advance);
    }
    tally(job, vm, context);
}

/// Counts an instruction in the tally of the thread that has run, launched or skipped it.
pub(crate) fn tally(job: &mut Job, vm: &Shared, context: &ContextShared) {
    if vm.profiles
        && let Some(stamp) = job.take_stamp()
    {
        // What a clean-up passes on is another's failure.
        let ended = match vm.failures.poison(std::iter::once(job.point)) {
            Some(root) if root.point == job.point => Ended::Failed,
            Some(_) => Ended::PassedOn,
            None => Ended::Fine,
        };
        unpoisoned(context.tallies.lock()).add(job, stamp, ended);
    }
}

/// Runs or launches `job`, or skips it because of what it reads, and enters its failure if there is one by now. What it
/// returns says that the job is not over: it is carried out once more when that is.
#[must_use = "what is not over must not pass"]
#[inline(always)]
pub(crate) fn carry_out(job: &mut Job, entry: &StreamEntry, runner: &mut Runner, vm: &Shared) -> Option<Arc<Later>> {
    let failures = &vm.failures;
    let too_early = |job: &Job| {
        if vm.planted.is(Mutant::NotifiedBeforePublished) && entry.flight.is_none() {
            entry.pass(job.point.seq);
        }
    };
    // Here first, where it is inlined: nearly always nothing has failed.
    if failures.any()
        && let Some(root) = failures.poison(job.reads())
    {
        if let Some(clean_up) = job.clean_up() {
            return clean(job, entry, runner, vm, (clean_up, root));
        }
        log::debug!("{} on {} is skipped: {root}", job.name(), entry.key);
        too_early(job);
        if !vm.planted.is(Mutant::PoisonNotCarried) {
            failures.pass_on(job.point, job.order, root);
        }
    } else if job.task != Task::Nothing {
        if vm.profiles {
            job.stamp_start();
        }
        match attempt(job, entry, runner) {
            Outcome::Fine => {}
            Outcome::Later(later) => return Some(later),
            Outcome::Failed(failure) => {
                too_early(job);
                failures.fail(job.order, failure);
            }
        }
    }
    None
}

/// Runs a clean-up although what it reads has failed, because of `root`.
#[cold]
fn clean(
    job: &mut Job,
    entry: &StreamEntry,
    runner: &mut Runner,
    vm: &Shared,
    (clean_up, root): (CleanUp, Arc<Failure>),
) -> Option<Arc<Later>> {
    if vm.profiles {
        job.stamp_start();
    }
    match attempt(job, entry, runner) {
        Outcome::Fine if clean_up == CleanUp::Heals => {}
        Outcome::Fine => vm.failures.pass_on(job.point, job.order, root),
        Outcome::Later(later) => return Some(later),
        Outcome::Failed(failure) => vm.failures.fail(job.order, failure),
    }
    None
}

/// Skips `job`, whose device is lost.
#[cold]
pub(crate) fn refuse(job: &Job, entry: &StreamEntry, lost: ep::Error, failures: &Failures) {
    match failures.poison(job.reads()) {
        Some(root) => failures.pass_on(job.point, job.order, root),
        None => failures.fail(job.order, Arc::new(failure(job, entry, Cause::Device(lost)))),
    }
}

/// The failure of `job` because of `cause`.
#[cold]
pub(crate) fn failure(job: &Job, entry: &StreamEntry, cause: Cause) -> Failure {
    let (point, number) = (job.point, job.number());
    let failure = Failure { point, number, stream: entry.key, what: job.name().to_owned(), site: job.site, cause };
    log::debug!("{failure}");
    failure
}

/// Drops what a job holds; a panic of a capture's drop is logged, as nothing waits for it.
#[inline]
pub(crate) fn clear(job: &mut Job) {
    if !job.is_clear() {
        clear_caught(job);
    }
}

#[inline(never)]
fn clear_caught(job: &mut Job) {
    caught(|| job.clear());
}

/// Drops what a call that failed has left of its function: now and by this thread, as the job may be in flight for long.
#[cold]
fn drop_function(job: &mut Job) {
    caught(|| job.function.clear());
}

fn caught(drops: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(drops)) {
        log::error!("dropping the captures of an instruction panicked: {}", panic_text(payload));
    }
}

/// How running a job went.
enum Outcome {
    Fine,
    Failed(Arc<Failure>),
    /// Its function was called, and it is over when that is.
    Later(Arc<Later>),
}

#[inline(always)]
fn attempt(job: &mut Job, entry: &StreamEntry, runner: &mut Runner) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| runner.run(job, entry.policy))) {
        Ok(Ok(())) => Outcome::Fine,
        Ok(Err(error)) => {
            drop_function(job);
            outcome_of(error, job, entry)
        }
        Err(payload) => {
            drop_function(job);
            Outcome::Failed(Arc::new(failure(job, entry, Cause::Panic(panic_text(payload)))))
        }
    }
}

#[cold]
fn outcome_of(error: ep::CallError, job: &Job, entry: &StreamEntry) -> Outcome {
    let error = match error {
        ep::CallError::Device(error) => return Outcome::Failed(Arc::new(failure(job, entry, Cause::Device(error)))),
        ep::CallError::Function(error) => error,
    };
    match error.downcast::<Answer>().map(|answer| *answer) {
        Ok(Answer::Later(later)) => Outcome::Later(later),
        Ok(Answer::Part { name, site, cause }) => {
            let what = name.into_owned();
            Outcome::Failed(Arc::new(Failure { what, site, ..failure(job, entry, cause) }))
        }
        Err(error) => Outcome::Failed(Arc::new(failure(job, entry, Cause::Function(text_of(error))))),
    }
}

/// How many sources of an error its text tells: more than anybody reads, and an error may be its own source.
const SOURCES: usize = 64;

/// An error's text, with those of its sources; formatting and dropping it are user code.
pub(crate) fn text_of(error: ep::FnError) -> String {
    let text = catch_unwind(AssertUnwindSafe(move || {
        let mut text = error.to_string();
        let mut sources =
            std::iter::successors(error.source(), |inner: &&(dyn std::error::Error + 'static)| (*inner).source());
        for inner in sources.by_ref().take(SOURCES) {
            text += ": ";
            text += &inner.to_string();
        }
        if sources.next().is_some() {
            text += ": and further sources";
        }
        text
    }));
    text.unwrap_or_else(|payload| format!("an error whose text could not be read ({})", panic_text(payload)))
}

/// A panic's message. The payload is dropped here, and if that panics too, the second payload is leaked: it may go on
/// like that for ever.
pub(crate) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a value that is no text".to_owned(),
    };
    if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(second);
    }
    text
}

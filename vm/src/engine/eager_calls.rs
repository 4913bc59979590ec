//! [`EagerCalls`]: what an engine with automatic programs does with eager calls before they are submitted.

use std::sync::Arc;

use streamvm_instructions::{Deadline, Error, InstructionList, Resource, Single};

use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::submit::commit::Submitted;
use crate::sync::fork::refuse_in_child;

/// Takes the eager calls of an engine, and may hold some back until the next call, or until something comes that could notice. An engine
/// has at most one, which `automatic` implements.
pub(crate) trait EagerCalls: Send + Sync {
    /// Takes an eager call of one instruction.
    ///
    /// # Errors
    /// Those of submitting it, or calls that were held back before it.
    fn take_one(&self, engine: &Arc<Engine>, single: &mut Single<'_>) -> Result<(), Error>;

    /// Takes an eager call.
    ///
    /// # Errors
    /// As [`take_one`](EagerCalls::take_one).
    fn take(&self, engine: &Arc<Engine>, list: &mut InstructionList) -> Result<(), Error>;

    /// Submits the held-back calls that come before `single`, which is no eager call and is about to be submitted.
    ///
    /// # Errors
    /// Those of the calls; a use of a tensor whose call was refused.
    fn before_one(&self, engine: &Arc<Engine>, single: &Single<'_>) -> Result<(), Error>;

    /// [`before_one`](EagerCalls::before_one) for a list, which waits on a full queue as `full` says.
    ///
    /// # Errors
    /// As [`before_one`](EagerCalls::before_one).
    fn before(&self, engine: &Arc<Engine>, list: &InstructionList, full: Full) -> Result<(), Error>;

    /// Submits the calls of this thread that are held back, and waits on a full queue as `full` says, until the deadline.
    ///
    /// # Errors
    /// Those of the calls. After an error of waiting they are still held back.
    fn submit_own(&self, engine: &Arc<Engine>, full: Full, deadline: Option<Deadline>) -> Result<(), Error>;

    /// Submits all calls that are held back, of every thread, and waits on a full queue as `full` says, until the deadline.
    ///
    /// # Errors
    /// The first of those of this thread's calls. A call of another thread that is refused is told to those who use its tensors. Errors of
    /// waiting for either; then the calls are still held back.
    fn submit_all(&self, engine: &Arc<Engine>, full: Full, deadline: Option<Deadline>) -> Result<(), Error>;

    /// Submits the calls of this thread that are held back, and those of other threads that come before a use of `resource`.
    ///
    /// # Errors
    /// Errors of waiting; the resource was never written, because the call was refused. If another call of this thread is refused, the next
    /// [`submit_own`](EagerCalls::submit_own) of the thread returns that.
    fn submit_users_of(&self, engine: &Arc<Engine>, resource: &Resource) -> Result<(), Error>;

    /// Holds no call back any more, and submits all that are held back past the bounds on pending work, because the engine is about to close. Does
    /// not wait for work.
    fn stop_holding(&self, engine: &Arc<Engine>);

    /// The body of a thread of the engine: submits the calls of threads that have been idle for a millisecond. Returns once the engine is closed.
    fn serve_idle(&self, engine: &Arc<Engine>);

    /// Ends what runs beside the callers, because the engine is closed.
    fn close(&self);

    /// The counters.
    fn stats(&self) -> AutomaticStats;
}

/// The counters of [automatic programs](crate::VmBuilder::auto_program); all zero in an engine without them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AutomaticStats {
    /// How many repeated sequences of calls were found.
    pub sequences: u64,
    /// How many times a sequence was submitted as one run of a program.
    pub replays: u64,
    /// How many calls those replays stand for.
    pub calls_replayed: u64,
    /// How many times calls that were held back were submitted one by one instead.
    pub fallbacks: u64,
}

impl Engine {
    /// Takes an eager call: submits it, or holds it back where the engine has automatic programs.
    pub(crate) fn take_call(self: &Arc<Self>, list: &mut InstructionList) -> Result<(), Error> {
        refuse_in_child(self.handle.fork)?;
        match &self.calls {
            Some(calls) => calls.take(self, list),
            None => self.submit(list, Full::Blocks, &mut Submitted::default()),
        }
    }

    /// Submits the calls of this thread that are held back. Blocks while the queue is full, until the deadline.
    pub(crate) fn submit_own_calls(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<(), Error> {
        self.calls.as_ref().map_or(Ok(()), |calls| calls.submit_own(self, Full::Blocks, deadline))
    }

    /// Submits all calls that are held back. Blocks while the queue is full, until the deadline.
    pub(crate) fn submit_all_calls(self: &Arc<Self>, deadline: Option<Deadline>) -> Result<(), Error> {
        self.calls.as_ref().map_or(Ok(()), |calls| calls.submit_all(self, Full::Blocks, deadline))
    }

    /// Holds no call back any more, and submits all that are held back. Does not wait for work.
    pub(crate) fn stop_holding_calls(self: &Arc<Self>) {
        if let Some(calls) = &self.calls {
            calls.stop_holding(self);
        }
    }
}

//! What an engine that writes a trace with times has in common ([`VmBuilder::trace`](crate::VmBuilder::trace)): the clock, the lists that belong to no thread, and who wants to
//! see the trace.
//!
//! What threads run is in lists of their own ([`Events`]). Submissions note under their own lock what they submit and the use of memory.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use streamvm_ep::{Site, StepNote};
use streamvm_instructions::Failure;

use crate::sync::{Mutex, Receiver, Sender, channel, unpoisoned};
use crate::tasks::counters::{Ended, Stamp};
use crate::tasks::events::{Blocked, Events, Passed, RanList, Times, Why};
use crate::tasks::task::Task;

/// See the module's documentation.
pub(crate) struct Timeline {
    /// The time that all others count from.
    zero: Instant,
    /// What the completion has seen.
    pub(crate) completion: Events<Vec<Passed>>,
    /// When callers were blocked.
    pub(crate) callers: Events<Vec<Blocked>>,
    /// Who wants to see the trace.
    pub(crate) asks: Asks,
    /// What messages call its output.
    pub(crate) name: String,
}

/// Who wants a trace to be written, now.
#[derive(Default)]
pub(crate) struct Asks(Mutex<Asked>);

/// What the thread that writes the trace is asked for.
#[derive(Default)]
pub(crate) struct Asked {
    /// Why the engine itself wants the trace.
    pub(crate) cause: Cause,
    /// Callers that wait for the outcome, or the text of an error.
    pub(crate) callers: Vec<Sender<Result<(), String>>>,
    /// Whether nobody will answer any more.
    is_over: bool,
}

/// Why an engine writes the trace of what has happened lately: the greater, the worse.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Cause {
    #[default]
    Nothing,
    Stall,
    Failure,
    Panic,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Nothing => "a call",
            Cause::Stall => "a stall",
            Cause::Failure => "a failure",
            Cause::Panic => "a panic",
        })
    }
}

impl Asks {
    /// Asks for the trace for a reason of the engine.
    pub(crate) fn ask(&self, cause: Cause) {
        let mut asked = unpoisoned(self.0.lock());
        asked.cause = asked.cause.max(cause);
    }

    /// Asks for the trace, and returns where the outcome will be; nothing will be there if the thread that writes has ended.
    pub(crate) fn ask_and_wait(&self) -> Receiver<Result<(), String>> {
        let (sender, receiver) = channel();
        let mut asked = unpoisoned(self.0.lock());
        if !asked.is_over {
            asked.callers.push(sender);
        }
        receiver
    }

    /// Takes what was asked for; nothing is answered after the call that says so.
    pub(crate) fn take(&self, is_over: bool) -> Asked {
        let mut asked = unpoisoned(self.0.lock());
        std::mem::replace(&mut *asked, Asked { is_over, ..Asked::default() })
    }

    /// The thread that writes holds this: nobody waits for an answer of a thread that has ended.
    pub(crate) fn until_dropped(&self) -> Answers<'_> {
        Answers(self)
    }
}

/// See [`Asks::until_dropped`].
pub(crate) struct Answers<'a>(&'a Asks);

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        drop(self.0.take(true));
    }
}

impl Timeline {
    /// The time counts from now. `name` is what messages call the output.
    pub(crate) fn new(name: String) -> Timeline {
        let (completion, callers, asks) = Default::default();
        Timeline { zero: Instant::now(), completion, callers, asks, name }
    }

    /// The time in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// Notes in `events` that a task was just run, launched or skipped.
    pub(crate) fn ran(
        &self,
        events: &Events<RanList>,
        (task, mut steps): (&Task, Option<&StepNote>),
        stamp: Stamp,
        (outcome, root): (Ended, Option<Arc<Failure>>),
    ) {
        let (submitted, began) = (self.at(stamp.submitted), stamp.started.map(|started| self.at(started)));
        let times = Times { submitted, began, ended: self.now() };
        events.add(|list| {
            if let Some(steps) = steps.take() {
                steps.take_times(|step, began, ended| list.add_step(step, [began, ended].map(|time| self.at(time))));
            }
            list.add(task, times, outcome, root);
        });
        // Of an instruction that is left out: the next one has others.
        steps.into_iter().for_each(|steps| steps.take_times(|_, _, _| ()));
    }

    /// Notes that this thread was blocked, from `began` until now.
    pub(crate) fn blocked(&self, why: Why, site: Site, began: u64) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread").into();
        let blocked = Blocked { why, thread: thread.id(), name, site, began, ended: self.now() };
        self.callers.add(|list| list.push(blocked));
    }

    /// The time of a reading of the clock.
    pub(crate) fn at(&self, time: Instant) -> u64 {
        // Wraps after 584 years.
        time.saturating_duration_since(self.zero).as_nanos() as u64
    }

    /// Such a time, negative if it was before the engine was built.
    pub(crate) fn signed(&self, time: Instant) -> i64 {
        self.at(time) as i64 - self.zero.saturating_duration_since(time).as_nanos() as i64
    }
}

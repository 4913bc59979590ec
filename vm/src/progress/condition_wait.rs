//! The wait of a stream for the condition of a block, on a device that runs commands later.
//!
//! An instruction with blocks is launched in pieces. After each piece the device copies a condition to memory of the host, or the host or another device runs a step once all before has
//! completed, and an event is recorded; the stream launches nothing until the event has passed and the context has read the condition. Other streams go on.
//!
//! ```text
//! Copying ──> Seen ──> Known
//!    └──> Over ──┘
//! ```
//!
//! * The completion queries the event (`Seen`). If the event could not be recorded, or a query has failed, the context waits for the whole
//!   stream instead (`Over`); the completion notes that, too, before it asks the other streams how far they are.
//! * Once everything that the instruction has waited for has an outcome, the completion decides whether the instruction may go on (`Known`), and
//!   wakes the context.
//! * On a lost device a wait becomes `Known` at once, in any stage.

use streamvm_ep::{EventId, ProgramStep};

use crate::tasks::notes::Noted;
use crate::tasks::task::Task;

/// See the module's documentation. It is under the lock of the list in flight.
pub(crate) struct ConditionWait {
    /// The instruction.
    pub(crate) noted: Noted,
    /// The step that begins the block.
    pub(crate) step: ProgramStep,
    /// The event after the copy of the condition; `None` if it could not be recorded.
    pub(crate) event: Option<EventId>,
    pub(crate) stage: Stage,
}

/// How far a wait for a condition is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The device has not passed the copy, as far as is known.
    Copying,
    /// The context has waited until the stream had nothing left to run.
    Over,
    /// The completion knows that the copy is over.
    Seen,
    /// The context may go on.
    Known {
        /// Whether a command of the instruction has failed, or the device is lost: no further commands are launched.
        failed: bool,
    },
}

impl ConditionWait {
    /// A wait of `task`, which has queued everything up to `event`.
    pub(crate) fn new(task: &Task, step: ProgramStep, event: Option<EventId>) -> ConditionWait {
        ConditionWait { noted: Noted::of(task), step, event, stage: Stage::Copying }
    }

    /// The event to query or to wait for, while the copy is not known to be over.
    pub(crate) fn open_event(&self) -> Option<EventId> {
        self.event.filter(|_| self.stage == Stage::Copying)
    }

    /// Notes that the context has waited for the whole stream.
    pub(crate) fn prove(&mut self) {
        if self.stage == Stage::Copying {
            self.stage = Stage::Over;
        }
    }

    /// The completion notes what the context has found out by waiting. Returns whether that is news.
    pub(crate) fn see_proof(&mut self) -> bool {
        let is_news = self.stage == Stage::Over;
        if is_news {
            self.stage = Stage::Seen;
        }
        is_news
    }

    /// The completion notes that the event has passed.
    pub(crate) fn see_event(&mut self) {
        if matches!(self.stage, Stage::Copying | Stage::Over) {
            self.stage = Stage::Seen;
        }
    }

    /// Whether the copy is over and nothing is decided.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self.stage, Stage::Over | Stage::Seen)
    }

    /// Whether the completion can decide, with a device that is `lost` or not.
    pub(crate) fn can_be_decided(&self, lost: bool) -> bool {
        self.stage == Stage::Seen || (lost && !matches!(self.stage, Stage::Known { .. }))
    }
}

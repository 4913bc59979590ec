//! Handles of recorded steps, by which later ones are ordered after them.

use std::fmt;
use std::ops::Range;

use streamvm_ep::Site;
use streamvm_instructions::{EngineRef, Error, ProgramError};

use crate::ir::program::StepOrder;
use crate::record::recording::Recording;

/// Steps of a recording, that [`Recorder::after`](crate::Recorder::after) has recorded. Steps that are recorded later can be ordered after them.
#[derive(Clone)]
pub struct Steps {
    recording: EngineRef,
    steps: Range<usize>,
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Steps({:?})", self.steps)
    }
}

impl Recording {
    /// The number that the next step will have, once it is known that steps can be ordered after `earlier`.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`] for steps of another recording.
    pub(super) fn begin_steps(&self, earlier: &[&Steps], site: Site) -> Result<usize, Error> {
        if earlier.iter().all(|steps| steps.recording.is(self.engine)) {
            return Ok(self.program.steps.len());
        }
        let why = "the earlier steps belong to another recording; order steps of one recording";
        Err(ProgramError::NotRecordable { what: "an order of steps".to_owned(), site, why: why.to_owned() }.into())
    }

    /// Orders all steps from number `begin` on after `earlier`, and returns a handle for them.
    pub(super) fn end_steps(&mut self, begin: usize, earlier: &[&Steps]) -> Steps {
        let later = self.without_marks(begin..self.program.steps.len());
        for Steps { steps, .. } in earlier {
            if !steps.is_empty() && !later.is_empty() {
                self.program.orders.push(StepOrder { earlier: steps.clone(), later: later.clone() });
            }
        }
        Steps { recording: self.engine, steps: later }
    }

    /// The range without steps at its ends that begin or end blocks: these compute nothing, and have no number in texts.
    fn without_marks(&self, steps: Range<usize>) -> Range<usize> {
        let is_work = |number: &usize| !self.program.steps[*number].work.is_mark();
        match (steps.clone().find(is_work), steps.clone().rev().find(is_work)) {
            (Some(first), Some(last)) => first..last + 1,
            _ => steps.start..steps.start,
        }
    }
}

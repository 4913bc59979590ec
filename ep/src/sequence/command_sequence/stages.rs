//! Commands that are looked into: what is queued for each, and what the host finds once it has run.

use super::stretches::{RunNow, Stretch};
use super::{CommandSequence, SequencePosition};
use crate::call::operand::Operand;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::buffers::located;
use crate::sequence::commands::Commands;
use crate::sequence::looks::LookCopy;

/// How far a command has come that is looked into. What was queued last has run when the sequence is called again.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Nothing of it was queued.
    #[default]
    Begin,
    /// A copy of this input, counted among those that the command overwrites.
    Before(usize),
    /// The command, and a copy of its output unless an infinity in what it overwrites excuses it.
    Ran { is_excused: bool },
    /// A copy of this input, because the output has this element that is infinite or NaN.
    Inputs { place: usize, index: Vec<usize>, value: f64 },
}

impl CommandSequence {
    /// How the command of a stretch goes on, once what was queued of it has run: `None` if it is over. Notes how long the command took.
    ///
    /// # Errors
    /// [`SequenceError::NotFinite`] if the command has written an infinity or NaN, and its inputs have none.
    pub(super) fn next_stage(
        &self,
        stretch: &Stretch,
        position: &mut SequencePosition,
        buffers: &[Operand<'static>],
    ) -> Result<Option<Stage>, SequenceError> {
        let step = stretch.steps.start;
        let look = self.looks.get(step).and_then(Option::as_ref);
        // SAFETY: `run` has checked the buffers. By the duties of `SequenceFlag::new`, the host can read the flag, and the copy has run when `run` is
        // called again; no command is queued meanwhile.
        let find = |copy: &LookCopy| unsafe { copy.find(step, buffers) };
        Ok(match (std::mem::take(&mut position.stage), look) {
            (Stage::Begin, Some(look)) if !look.before.is_empty() => Some(Stage::Before(0)),
            (Stage::Begin, _) => Some(Stage::Ran { is_excused: false }),
            (Stage::Before(place), Some(look)) => {
                let is_excused = find(&look.before[place])?.is_some();
                let is_last = place + 1 == look.before.len();
                Some(if is_excused || is_last { Stage::Ran { is_excused } } else { Stage::Before(place + 1) })
            }
            (Stage::Ran { is_excused }, look) => {
                if let (Some(times), Some(begun)) = (&self.times, position.begun.take()) {
                    times[position.next].add(begun.elapsed());
                }
                let Some(look) = look.filter(|_| !is_excused) else { return Ok(None) };
                let Some((index, value)) = find(&look.output)? else { return Ok(None) };
                if look.inputs.is_empty() {
                    return Err(SequenceError::NotFinite { step, index, value });
                }
                Some(Stage::Inputs { place: 0, index, value })
            }
            (Stage::Inputs { place, index, value }, Some(look)) => {
                if find(&look.inputs[place])?.is_some() {
                    return Ok(None);
                }
                if place + 1 == look.inputs.len() {
                    return Err(SequenceError::NotFinite { step, index, value });
                }
                Some(Stage::Inputs { place: place + 1, index, value })
            }
            (Stage::Before(_) | Stage::Inputs { .. }, None) => unreachable!("a step without looks has no such stage"),
        })
    }

    /// Queues what belongs to a stage of the command of a stretch.
    pub(super) fn queue_stage(
        &self,
        stage: &Stage,
        stretch: &Stretch,
        stream: &mut dyn Commands,
        buffers: &[Operand<'static>],
        run: RunNow,
    ) -> Result<(), SequenceError> {
        let step = stretch.steps.start;
        let look = self.looks.get(step).and_then(Option::as_ref);
        if matches!(stage, Stage::Ran { .. }) {
            self.queue_stretch(stretch, stream, buffers, run)?;
        }
        let copy = look.and_then(|look| match stage {
            Stage::Before(place) => look.before.get(*place),
            Stage::Ran { is_excused: false } => Some(&look.output),
            Stage::Inputs { place, .. } => look.inputs.get(*place),
            Stage::Begin | Stage::Ran { is_excused: true } => None,
        });
        let Some(LookCopy { copy, of_buffers }) = copy else { return Ok(()) };
        stream.begin_step(self.steps[step].label, of_buffers);
        let mut operands: [Operand; 2] = std::array::from_fn(|_| Operand::blank());
        // SAFETY: the source is an operand that `new` has added to the buffers, `checking_finite` has added the view of the flag, and `check` has accepted
        // those of the call. They give no slices.
        let set = unsafe { located(copy, buffers, &mut operands) };
        let [source, target] = set else { unreachable!("a copy has two operands") };
        stream.copy(source, target).map_err(|error| SequenceError::Step { step, error })
    }
}

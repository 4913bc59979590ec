//! Steps of a sequence that others run than its device.

use smallvec::SmallVec;

use super::stretches::RunNow;
use super::{CommandSequence, SequencePosition};
use crate::call::label::ProgramStep;
use crate::call::operand::{Access, Operand};
use crate::errors::sequence_error::SequenceError;
use crate::sequence::blocks::{Rounds, Test};
use crate::sequence::buffers::located;
use crate::sequence::commands::Commands;
use crate::sequence::others::{Code, DeviceCode, HostCode, LentRun, OtherSteps, OtherWork, StepUses};
use crate::sequence::step::{MOST_OPERANDS, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork};
use crate::tensor::layout::Layout;

impl CommandSequence {
    /// The steps of others that this step is one of.
    pub(super) fn others_at(&self, step: usize) -> Option<&OtherSteps> {
        at(&self.others, step)
    }

    /// Runs steps of others. Returns the step at which the run must pause before they are over, or before their condition is known.
    pub(super) fn run_by_others(
        &self,
        others: &OtherSteps,
        stream: &mut dyn Commands,
        buffers: &mut [Operand<'static>],
        run: RunNow,
        position: &mut SequencePosition,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        let first = others.steps.start;
        let pause = Ok(Some(self.steps[first].label));
        match &others.work {
            OtherWork::Host(_) | OtherWork::Upload(_, None) | OtherWork::Condition if !position.is_drained => pause,
            OtherWork::Condition => Ok(None),
            OtherWork::Host(code) => run_on_host(code, first, stream, buffers, run, position).map(|()| None),
            OtherWork::Device(code) | OtherWork::CopiedCondition(code) => {
                self.run_by_device(code, first, stream, buffers, run, position)
            }
            OtherWork::Upload(code, None) => {
                run_on_host(code, first, stream, buffers, run, position)?;
                self.queue(&others.steps, stream, buffers, run)?;
                position.is_drained = false;
                Ok(None)
            }
            OtherWork::Upload(code, Some(by)) => {
                if position.lent.is_none() {
                    if !position.is_drained {
                        return pause;
                    }
                    run_on_host(code, first, stream, buffers, run, position)?;
                }
                self.run_by_device(by, first, stream, buffers, run, position)
            }
            OtherWork::Download(_, None) if !position.is_known => {
                self.queue(&others.steps, stream, buffers, run)?;
                position.is_known = true;
                pause
            }
            OtherWork::Download(code, by) => {
                if let Some(by) = by
                    && let Some(step) = self.run_by_device(by, first, stream, buffers, run, position)?
                {
                    return Ok(Some(step));
                }
                position.is_known = false;
                run_on_host(code, first, stream, buffers, run, position).map(|()| None)
            }
        }
    }

    /// Queues steps of another device on a lent stream, once the stream of the segment has nothing left to run, and pauses until they have run: so the caller finds out
    /// whether one of them has failed before anything uses what they write, and no two devices have commands of the run at a time.
    fn run_by_device(
        &self,
        code: &DeviceCode,
        first: usize,
        stream: &mut dyn Commands,
        buffers: &mut [Operand<'static>],
        run: RunNow,
        position: &mut SequencePosition,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        let failed = |error| SequenceError::Step { step: first, error };
        let (mut lent, mut run) = match position.lent.take() {
            Some(LentRun { mut stream, run, is_whole }) => {
                stream.finish().map_err(failed)?;
                if is_whole {
                    return Ok(None);
                }
                (stream, run)
            }
            None if !position.is_drained => return Ok(Some(self.steps[first].label)),
            None => (code.lend().map_err(failed)?, run.of_part(position)),
        };
        let step = {
            // A stream of the other device has been used, and code of registered ops may have run.
            let after = AfterHostCode(stream, true);
            lent.execute(after.0, code.code().prepared(), buffers, &mut run)
        };
        let step = step.map_err(|error| error.counted_from(first))?;
        position.rounds = Rounds::after(run.rounds, run.loops_since);
        position.is_drained = false;
        position.lent = Some(LentRun { stream: lent, run, is_whole: step.is_none() });
        Ok(Some(step.unwrap_or(self.steps[first].label)))
    }
}

/// Runs steps of the host.
fn run_on_host(
    code: &HostCode,
    first: usize,
    stream: &mut dyn Commands,
    buffers: &mut [Operand<'static>],
    run: RunNow,
    position: &mut SequencePosition,
) -> Result<(), SequenceError> {
    report(code.code(), stream, buffers);
    let mut run = run.of_part(position);
    let note = stream.step_note();
    let after = AfterHostCode(stream, code.code().prepared().calls_functions());
    let ended = code.run(first, buffers, &mut run, note.as_deref());
    drop(after);
    position.rounds = Rounds::after(run.rounds, run.loops_since);
    ended
}

/// Tells the stream, if code of a caller has run, when it is dropped.
struct AfterHostCode<'s>(&'s mut dyn Commands, bool);

impl Drop for AfterHostCode<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.after_host_code();
        }
    }
}

/// Tells the stream what the host is about to use.
fn report(code: &Code, stream: &mut dyn Commands, buffers: &[Operand<'static>]) {
    for (label, StepUses { operands, of_buffers }) in code.uses() {
        let mut set: SmallVec<[Operand; MOST_OPERANDS]> = operands.iter().map(|_| Operand::blank()).collect();
        stream.begin_step(label, of_buffers);
        // SAFETY: `with_others` has added the operands to the buffers, and `check` has accepted those of the call. No slice of one exists between two commands.
        let set = unsafe { located(operands, buffers, &mut set) };
        stream.host_uses(label.name, set);
    }
}

/// Checks that steps of others are steps, in ascending order: a copy or a condition is one.
///
/// # Errors
/// [`SequenceError::Group`].
pub(super) fn check(others: &[OtherSteps], steps: usize) -> Result<(), SequenceError> {
    let mut end = 0;
    for (range, are_all_of_others) in others.iter().map(|others| (&others.steps, others.are_all_of_others())) {
        let is_one = range.len() == 1 || are_all_of_others;
        if range.is_empty() || range.start < end || range.end > steps || !is_one {
            let what = format!(
                "the steps {range:?} of others are none, or do not come after those before, or are several copies or conditions"
            );
            return Err(SequenceError::Group { step: range.start, what });
        }
        end = range.end;
    }
    Ok(())
}

/// Checks that a step whose condition is another one's begins a block.
///
/// # Errors
/// [`SequenceError::Blocks`].
pub(super) fn check_condition(
    number: usize,
    step: &SequenceStep,
    others: Option<&OtherSteps>,
) -> Result<(), SequenceError> {
    let is_condition = others.is_some_and(OtherSteps::is_condition);
    if is_condition && !matches!(step.work, SequenceWork::If | SequenceWork::While { .. }) {
        return Err(SequenceError::Blocks { step: number, what: "there is no condition here: no block begins" });
    }
    Ok(())
}

/// Those of which this step is one.
pub(super) fn at(others: &[OtherSteps], step: usize) -> Option<&OtherSteps> {
    let found = others.get(others.partition_point(|others| others.steps.end <= step))?;
    found.steps.contains(&step).then_some(found)
}

/// Makes a view of the flag an operand of the command of a step: the target of a copy of a condition, or of what the host copies on; the source of what the host has
/// copied there.
///
/// # Errors
/// [`SequenceError::Blocks`] or [`SequenceError::Operands`] if there is no flag.
pub(super) fn insert_flag(
    number: usize,
    step: &mut SequenceStep,
    others: Option<&OtherSteps>,
    flag: Option<usize>,
    of_buffers: &mut SmallVec<[usize; MOST_OPERANDS]>,
) -> Result<(), SequenceError> {
    let view = |of: &SequenceOperand, index: usize, access| SequenceOperand {
        memory: SequenceMemory::Buffer { index, offset: 0 },
        dtype: of.dtype,
        layout: Layout::contiguous(*of.layout.shape()),
        access,
    };
    let no_flag = || SequenceError::Operands {
        step: number,
        expected: "a flag, for a copy between memory of the host and of the device",
        found: "none".to_owned(),
    };
    match (others.map(|others| &others.work), &mut step.operands[..]) {
        (Some(OtherWork::Host(_) | OtherWork::Device(_) | OtherWork::Condition), _) => {}
        (Some(OtherWork::Upload(..)), [source, _]) if matches!(step.work, SequenceWork::Copy) => {
            let index = flag.ok_or_else(no_flag)?;
            (*source, of_buffers[0]) = (view(source, index, Access::Read), index);
        }
        (Some(OtherWork::Download(..)), [_, target]) if matches!(step.work, SequenceWork::Copy) => {
            let index = flag.ok_or_else(no_flag)?;
            (*target, of_buffers[1]) = (view(target, index, Access::Write), index);
        }
        (Some(OtherWork::Upload(..) | OtherWork::Download(..)), operands) => {
            let found = format!("{:?} of {} operands", step.work, operands.len());
            return Err(SequenceError::Operands { step: number, expected: "a copy", found });
        }
        (None | Some(OtherWork::CopiedCondition(_)), [condition]) if step.work.is_mark() => {
            let what = "there is no flag to copy the condition of this block to";
            let index = flag.ok_or(SequenceError::Blocks { step: number, what })?;
            let target = view(condition, index, Access::Write);
            step.operands.push(target);
            of_buffers.push(index);
        }
        (None | Some(OtherWork::CopiedCondition(_)), _) => {}
    }
    Ok(())
}

/// Whether a condition in memory of the host is true.
pub(super) fn reads_true(test: &Test, buffers: &[Operand<'static>]) -> Result<bool, SequenceError> {
    let mut operands = [Operand::blank()];
    // SAFETY: the condition is the operand of its step, which `with_others` has added to the buffers, and `check` has accepted those of the call. By the duties of
    // `OtherSteps::new` the host can read it, and no command that writes it is pending: the run has paused and queued nothing since.
    let condition = &unsafe { located(std::slice::from_ref(&test.condition), buffers, &mut operands) }[0];
    let bytes = condition.bytes().map_err(|error| SequenceError::Step { step: test.step, error })?;
    Ok(bytes.iter().any(|byte| *byte != 0))
}

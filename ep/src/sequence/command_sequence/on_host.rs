//! Steps of a sequence that the host runs.

use smallvec::SmallVec;

use super::stretches::RunNow;
use super::{CommandSequence, SequencePosition};
use crate::call::operand::{Access, Operand};
use crate::call::prepared::SegmentRun;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::blocks::{Rounds, Test};
use crate::sequence::buffers::located;
use crate::sequence::commands::Commands;
use crate::sequence::host_steps::{HostCode, HostSteps, HostUses, HostWork};
use crate::sequence::step::{MOST_OPERANDS, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork};
use crate::tensor::layout::Layout;

impl CommandSequence {
    /// The steps of the host that this step is one of.
    pub(super) fn host_at(&self, step: usize) -> Option<&HostSteps> {
        at(&self.host, step)
    }

    /// Runs steps of the host, or the next half of a copy. Returns `false` if the run must pause first.
    pub(super) fn run_on_host(
        &self,
        host: &HostSteps,
        stream: &mut dyn Commands,
        buffers: &mut [Operand<'static>],
        run: RunNow,
        position: &mut SequencePosition,
    ) -> Result<bool, SequenceError> {
        let mut execute = |code: &HostCode, stream: &mut dyn Commands, buffers: &mut [Operand<'static>]| {
            report(code, stream, buffers);
            let loops_since = position.rounds.since();
            let mut run = SegmentRun { rounds: run.rounds, loops_since, ..SegmentRun::new(run.number) };
            let note = stream.step_note();
            let after = AfterHostCode(stream, code.prepared().calls_functions());
            let ended = code.run(host.steps.start, buffers, &mut run, note.as_deref());
            drop(after);
            position.rounds = Rounds::after(run.rounds, run.loops_since);
            ended
        };
        match &host.work {
            HostWork::Download(code) if position.is_known => {
                position.is_known = false;
                execute(code, stream, buffers)?;
            }
            HostWork::Download(_) => {
                self.queue(&host.steps, stream, buffers, run)?;
                position.is_known = true;
                return Ok(false);
            }
            _ if !position.is_drained => return Ok(false),
            HostWork::Run(code) => execute(code, stream, buffers)?,
            HostWork::Upload(code) => {
                execute(code, stream, buffers)?;
                self.queue(&host.steps, stream, buffers, run)?;
                position.is_drained = false;
            }
            HostWork::Condition => unreachable!("a part that begins a block is no work"),
        }
        Ok(true)
    }
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
fn report(code: &HostCode, stream: &mut dyn Commands, buffers: &[Operand<'static>]) {
    for (label, HostUses { operands, of_buffers }) in code.uses() {
        let mut set: SmallVec<[Operand; MOST_OPERANDS]> = operands.iter().map(|_| Operand::blank()).collect();
        stream.begin_step(label, of_buffers);
        // SAFETY: `with_host` has added the operands to the buffers, and `check` has accepted those of the call. No slice of one exists between two commands.
        let set = unsafe { located(operands, buffers, &mut set) };
        stream.host_uses(label.name, set);
    }
}

/// Checks that steps of the host are steps, in ascending order: a copy or a condition is one.
///
/// # Errors
/// [`SequenceError::Group`].
pub(super) fn check(host: &[HostSteps], steps: usize) -> Result<(), SequenceError> {
    let mut end = 0;
    for HostSteps { steps: range, work } in host {
        let is_one = range.len() == 1 || matches!(work, HostWork::Run(_));
        if range.is_empty() || range.start < end || range.end > steps || !is_one {
            let what = format!(
                "the steps {range:?} of the host are none, or do not come after those before, or are several copies or conditions"
            );
            return Err(SequenceError::Group { step: range.start, what });
        }
        end = range.end;
    }
    Ok(())
}

/// Checks that a step whose condition the host reads begins a block.
///
/// # Errors
/// [`SequenceError::Blocks`].
pub(super) fn check_condition(
    number: usize,
    step: &SequenceStep,
    by_host: Option<&HostSteps>,
) -> Result<(), SequenceError> {
    let is_condition = by_host.is_some_and(|host| matches!(host.work, HostWork::Condition));
    if is_condition && !matches!(step.work, SequenceWork::If | SequenceWork::While { .. }) {
        return Err(SequenceError::Blocks { step: number, what: "the host reads no condition here: no block begins" });
    }
    Ok(())
}

/// Those of which this step is one.
pub(super) fn at(host: &[HostSteps], step: usize) -> Option<&HostSteps> {
    let found = host.get(host.partition_point(|host| host.steps.end <= step))?;
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
    by_host: Option<&HostSteps>,
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
    match (by_host.map(|host| &host.work), &mut step.operands[..]) {
        (Some(HostWork::Run(_) | HostWork::Condition), _) => {}
        (Some(HostWork::Upload(_)), [source, _]) if matches!(step.work, SequenceWork::Copy) => {
            let index = flag.ok_or_else(no_flag)?;
            (*source, of_buffers[0]) = (view(source, index, Access::Read), index);
        }
        (Some(HostWork::Download(_)), [_, target]) if matches!(step.work, SequenceWork::Copy) => {
            let index = flag.ok_or_else(no_flag)?;
            (*target, of_buffers[1]) = (view(target, index, Access::Write), index);
        }
        (Some(HostWork::Upload(_) | HostWork::Download(_)), operands) => {
            let found = format!("{:?} of {} operands", step.work, operands.len());
            return Err(SequenceError::Operands { step: number, expected: "a copy", found });
        }
        (None, [condition]) if step.work.is_mark() => {
            let what = "there is no flag to copy the condition of this block to";
            let index = flag.ok_or(SequenceError::Blocks { step: number, what })?;
            let target = view(condition, index, Access::Write);
            step.operands.push(target);
            of_buffers.push(index);
        }
        (None, _) => {}
    }
    Ok(())
}

/// Whether a condition in memory of the host is true.
pub(super) fn reads_true(test: &Test, buffers: &[Operand<'static>]) -> Result<bool, SequenceError> {
    let mut operands = [Operand::blank()];
    // SAFETY: the condition is the operand of its step, which `with_host` has added to the buffers, and `check` has accepted those of the call. By the duties of
    // `HostSteps::new` the host can read it, and no command that writes it is pending: the run has paused and queued nothing since.
    let condition = &unsafe { located(std::slice::from_ref(&test.condition), buffers, &mut operands) }[0];
    let bytes = condition.bytes().map_err(|error| SequenceError::Step { step: test.step, error })?;
    Ok(bytes.iter().any(|byte| *byte != 0))
}

//! Stretches of a sequence: how its steps are divided into them, and how the commands of one are queued.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Command, CommandSequence, Fused, SequencePosition, by_others};
use crate::call::kernel::KernelCall;
use crate::call::label::ProgramStep;
use crate::call::operand::Operand;
use crate::call::prepared::SegmentRun;
use crate::errors::error::Error;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::blocks::{Part, Parts};
use crate::sequence::branches::Turn;
use crate::sequence::buffers::located;
use crate::sequence::commands::{Commands, Graphs};
use crate::sequence::graph::GraphStart;
use crate::sequence::others::OtherSteps;
use crate::sequence::step::{MOST_OPERANDS, SequenceWork, params_of_run};

/// Neighbouring steps that are all announced together, or all queued one by one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stretch {
    pub(super) steps: Range<usize>,
    /// Whether they are announced together.
    pub(super) together: bool,
}

/// The run that commands are queued for, and how far its loops have come: together they decide which random numbers the commands draw.
#[derive(Copy, Clone, Debug)]
pub(super) struct RunNow {
    /// The number of the run.
    pub(super) number: u64,
    /// The rounds that its loops have made.
    pub(super) rounds: u64,
    /// The stream and the number of the instruction, as in its label.
    pub(super) instruction: (u32, u64),
}

impl RunNow {
    /// The run of steps of others, at their beginning.
    pub(super) fn of_part(self, position: &SequencePosition) -> SegmentRun {
        let RunNow { number, rounds, instruction } = self;
        SegmentRun { rounds, loops_since: position.rounds.since(), instruction, ..SegmentRun::new(number) }
    }
}

/// Divides the steps. A single command is queued by itself: a graph would save no call. With `alone`, each command is. Steps of others are stretches of their own.
///
/// # Errors
/// [`SequenceError::Blocks`]
pub(super) fn parts(
    steps: &[Command],
    fused: &[Fused],
    others: &[OtherSteps],
    alone: bool,
) -> Result<Vec<Part<Stretch>>, SequenceError> {
    let mut parts = Parts::new();
    let mut begin = 0;
    let is_one_command = |one: usize, next: usize| {
        let group = fused.get(fused.partition_point(|fused| fused.steps.end <= one));
        group.is_some_and(|group| group.steps.start <= one && next < group.steps.end)
    };
    let joins_next = |number: usize| {
        let (one, next) = (&steps[number], &steps[number + 1]);
        let is_alike = is_same_in_each_run(one) == is_same_in_each_run(next);
        let is_of_others = [number, number + 1].iter().any(|&step| by_others::at(others, step).is_some());
        let may_join = !one.step.work.is_mark() && !next.step.work.is_mark() && is_alike && !is_of_others;
        may_join && (!alone || is_one_command(number, number + 1))
    };
    while begin < steps.len() {
        if let Some(OtherSteps { steps: of_others, .. }) =
            by_others::at(others, begin).filter(|others| !others.is_condition())
        {
            parts.work(Stretch { steps: of_others.clone(), together: false });
            begin = of_others.end;
            continue;
        }
        let last = (begin..steps.len() - 1).find(|&number| !joins_next(number)).unwrap_or(steps.len() - 1);
        let (end, group) = (last + 1, &steps[begin..=last]);
        if group[0].step.work.is_mark() {
            parts.mark(begin, &group[0].step)?;
        } else {
            let together = commands(&(begin..end), fused) > 1 && is_same_in_each_run(&group[0]);
            parts.work(Stretch { steps: begin..end, together });
        }
        begin = end;
    }
    parts.finish(begin)
}

/// The number of commands for these steps, which are a stretch. All steps of a group are the same in each run, so a group lies within one stretch.
pub(super) fn commands(steps: &Range<usize>, fused: &[Fused]) -> usize {
    let of_stretch = &fused[fused.partition_point(|fused| fused.steps.start < steps.start)..];
    let of_stretch = of_stretch.iter().take_while(|fused| fused.steps.start < steps.end);
    steps.len() - of_stretch.map(|fused| fused.steps.len() - 1).sum::<usize>()
}

/// Whether the steps of a stretch can be part of a graph.
pub(super) fn is_announced(stretch: &Stretch, steps: &[Command], others: &[OtherSteps]) -> bool {
    by_others::at(others, stretch.steps.start).is_none() && steps[stretch.steps.clone()].iter().all(is_same_in_each_run)
}

/// Whether the step is the same command in each run over the same buffers, and reports nothing that belongs to one launch.
fn is_same_in_each_run(command: &Command) -> bool {
    match &command.step.work {
        SequenceWork::Kernel(kernel, params) => !params.refuses_elements(kernel.op, kernel.dtype),
        SequenceWork::Copy | SequenceWork::Fill(_) => true,
        _ => false,
    }
}

impl CommandSequence {
    /// Queues a command for each step of a stretch, or launches a graph of them.
    pub(super) fn queue_stretch(
        &self,
        Stretch { steps, together }: &Stretch,
        stream: &mut dyn Commands,
        buffers: &[Operand<'static>],
        run: RunNow,
    ) -> Result<(), SequenceError> {
        let failed = |error| SequenceError::Step { step: steps.start, error };
        if *together && let Some(graphs) = stream.graphs() {
            let key = self.graph_key(steps.start);
            match graphs.begin_graph(key, buffers).map_err(failed)? {
                GraphStart::Launched => return Ok(()),
                GraphStart::Capturing => {
                    let captured = self.queue(steps, graphs, buffers, run);
                    // If no graph is launched, the steps are queued one by one below; a step that fails returns its error there.
                    if graphs.end_graph(captured.is_ok()).map_err(failed)? {
                        return Ok(());
                    }
                }
                GraphStart::Queue => {}
            }
        }
        self.queue(steps, stream, buffers, run)
    }

    /// Queues commands for these steps, on the lanes of their branches.
    pub(super) fn queue(
        &self,
        steps: &Range<usize>,
        stream: &mut dyn Commands,
        buffers: &[Operand<'static>],
        run: RunNow,
    ) -> Result<(), SequenceError> {
        let lanes = if self.branches.is_empty() { 1 } else { self.branches.lanes(steps) };
        if lanes >= 2
            && let Some(graphs) = stream.graphs()
        {
            let failed = |error| SequenceError::Step { step: steps.start, error };
            graphs.begin_lanes(lanes).map_err(failed)?;
            let queued = self.queue_branches(steps, graphs, buffers, run);
            // Also after a step that fails: later commands of the stream come after what was queued on its lanes.
            let ended = graphs.end_lanes().map_err(failed);
            return queued.and(ended);
        }
        self.queue_in_order(steps, stream, buffers, run)
    }

    /// Queues commands for these steps, branch by branch.
    fn queue_branches(
        &self,
        steps: &Range<usize>,
        stream: &mut dyn Graphs,
        buffers: &[Operand<'static>],
        run: RunNow,
    ) -> Result<(), SequenceError> {
        for Turn { steps, lane, behind, mark } in self.branches.turns(steps) {
            let failed = |error| SequenceError::Step { step: steps.start, error };
            stream.enter_lane(lane, &behind).map_err(failed)?;
            self.queue_in_order(&steps, stream, buffers, run)?;
            if let Some(mark) = mark {
                stream.mark_lane(mark).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Queues a command for each of these steps, or for each group of them that has a kernel. A group lies within the steps, or outside of them.
    fn queue_in_order(
        &self,
        steps: &Range<usize>,
        stream: &mut dyn Commands,
        buffers: &[Operand<'static>],
        run: RunNow,
    ) -> Result<(), SequenceError> {
        let mut operands: SmallVec<[Operand; MOST_OPERANDS]> = (0..MOST_OPERANDS).map(|_| Operand::blank()).collect();
        let mut fused =
            self.fused[self.fused.partition_point(|fused| fused.steps.start < steps.start)..].iter().peekable();
        let mut computed = 0;
        for (number, Command { step, label, of_buffers }) in
            self.steps.iter().enumerate().take(steps.end).skip(steps.start)
        {
            if let Some(group) = fused.next_if(|fused| fused.steps.start == number)
                && queue_fused(group, *label, stream, buffers)
                    .map_err(|error| SequenceError::Step { step: number, error })?
            {
                computed = group.steps.end;
            }
            if number < computed {
                continue;
            }
            stream.begin_step(*label, of_buffers);
            if operands.len() < step.operands.len() {
                operands.resize_with(step.operands.len(), Operand::blank);
            }
            // SAFETY: `new` has added the operands of the steps to the buffers, and `check` has accepted those of the call. They give no
            // slices: the host cannot access their memory.
            let set = unsafe { located(&step.operands, buffers, &mut operands) };
            let queued = match (&step.work, set) {
                (SequenceWork::Kernel(kernel, params), operands) => {
                    let inputs = operands.len() - 1;
                    stream.launch(&mut KernelCall::new(*kernel, operands, inputs, params))
                }
                (SequenceWork::Draw { kernel, params, advance, in_loop }, operands) => {
                    let params = &params_of_run(params, (*advance, run.number), if *in_loop { run.rounds } else { 0 });
                    let inputs = operands.len() - 1;
                    stream.launch(&mut KernelCall::new(*kernel, operands, inputs, params))
                }
                // The condition of a block is copied to the flag.
                (SequenceWork::Copy | SequenceWork::If | SequenceWork::While { .. }, [source, target]) => {
                    stream.copy(source, target)
                }
                (SequenceWork::Fill(value), [target]) => stream.fill(target, *value),
                _ => unreachable!("`new` has counted the operands, and no stretch has an `Else` or `End`"),
            };
            queued.map_err(|error| SequenceError::Step { step: number, error })?;
        }
        Ok(())
    }
}

/// Launches the kernel of a group. `false` if the stream has none any longer.
fn queue_fused(
    group: &Fused,
    label: ProgramStep,
    stream: &mut dyn Commands,
    buffers: &[Operand<'static>],
) -> Result<bool, Error> {
    let Some(stream) = stream.graphs() else { return Ok(false) };
    stream.begin_step(label, &group.of_buffers);
    let mut views: SmallVec<[Operand; 8]> = group.views.iter().map(|_| Operand::blank()).collect();
    // SAFETY: the views are those of steps that `new` has added to the buffers, and `check` has accepted the buffers of the call. They give no slices:
    // the host cannot access their memory.
    let views = unsafe { located(&group.views, buffers, &mut views) };
    stream.launch_fused(&group.kernel, views)
}

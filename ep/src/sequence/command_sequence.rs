//! Steps that one instruction queues on the stream of a device which runs commands later, one command for each step or for each group of fused steps.
//!
//! As for a [`CpuSequence`](crate::CpuSequence), the operands of the instruction are buffers, and [`CommandSequence::new`] checks all steps
//! once.
//!
//! Neighbouring steps that are the same commands in each run over the same buffers are announced to the stream together
//! ([`Stream::begin_graph`](crate::Stream::begin_graph)), which may launch them by one call. Two kinds of step are queued one by one: a
//! kernel that refuses elements, because it reports them for each launch, and a kernel that draws random numbers, because its parameters
//! differ in each run.
//!
//! Elementwise steps that a kernel of the device computes together ([`CommandSequence::fused`]) are one command.
//!
//! Where a block begins, the condition is in memory of the device. The sequence queues a copy of it to a *flag*, a buffer in page-locked
//! memory of the host, and returns. Once the copy has run, the caller calls the sequence again at the [`SequencePosition`] that it has
//! reached; it reads the flag and queues the commands that follow.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use smallvec::SmallVec;

use crate::call::commands::{CommandCall, Commands};
use crate::call::fn_context::FnContext;
use crate::call::fused::{FusedGroup, FusedKernel};
use crate::call::graph::{GraphKey, GraphStart};
use crate::call::kernel::KernelCall;
use crate::call::label::StepLabel;
use crate::call::operand::{Access, Operand};
use crate::errors::error::Error;
use crate::names::device_id::DeviceKind;
use crate::sequence::blocks::{Part, Parts, Rounds, Test};
use crate::sequence::buffers::{Buffers, SequenceBuffer, located};
use crate::sequence::fused::{SequenceFusion, describe};
use crate::sequence::step::{
    MOST_OPERANDS, SequenceError, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork, params_of_run,
};
use crate::tensor::layout::Layout;

/// Steps for one kind of device that were checked: every operand lies within its buffer.
#[derive(Debug)]
pub struct CommandSequence {
    buffers: Buffers,
    steps: Vec<Command>,
    /// Steps that one kernel computes, in ascending order.
    fused: Vec<Fused>,
    /// All steps in order: where blocks begin and end, and the stretches between.
    parts: Vec<Part<Stretch>>,
    has_blocks: bool,
    /// The buffer that conditions are copied to, where the host reads them.
    flag: Option<usize>,
    /// Set when loops must end.
    stops: Arc<AtomicBool>,
    /// Names this sequence to streams.
    identity: Arc<()>,
}

/// Steps that one kernel computes.
#[derive(Debug)]
struct Fused {
    steps: Range<usize>,
    kernel: FusedKernel,
    views: Vec<SequenceOperand>,
    /// For each view its buffer.
    of_buffers: Vec<usize>,
}

/// Neighbouring steps that are all announced together, or all queued one by one.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stretch {
    steps: Range<usize>,
    /// Whether they are announced together.
    together: bool,
}

#[derive(Debug)]
struct Command {
    /// The step. One that begins a block has the flag as a second operand.
    step: SequenceStep,
    label: StepLabel,
    /// For each operand its buffer.
    of_buffers: SmallVec<[usize; MOST_OPERANDS]>,
}

/// How far a run of a [`CommandSequence`] has come; by default at its beginning.
#[derive(Debug, Default)]
pub struct SequencePosition {
    /// The part that is next.
    next: usize,
    /// Whether that part begins a block, and its condition was copied to the flag.
    is_known: bool,
    rounds: Rounds,
}

impl CommandSequence {
    /// Checks `steps` for devices of this kind, whose operands are views of buffers of `buffers` bytes each. If there are blocks, `flag` is a
    /// buffer of at least one byte that the host can read and that no step uses.
    ///
    /// # Errors
    /// [`SequenceError::Operands`] and [`SequenceError::PastBuffer`]; [`SequenceError::Blocks`] if a block does not end where it must, or if
    /// there is one and no flag.
    pub fn new(
        device: DeviceKind,
        buffers: &[usize],
        flag: Option<usize>,
        steps: Vec<(SequenceStep, StepLabel)>,
    ) -> Result<CommandSequence, SequenceError> {
        let buffers = buffers.iter().map(|&bytes| SequenceBuffer::Bytes(bytes)).collect();
        CommandSequence::over(device, buffers, flag, steps)
    }

    /// [`new`](CommandSequence::new) over buffers of which some may have gaps.
    ///
    /// # Errors
    /// Those of [`new`](CommandSequence::new); [`SequenceError::Operands`], too, for an operand that uses other elements than its buffer has, if that
    /// has gaps.
    pub fn over(
        device: DeviceKind,
        buffers: Vec<SequenceBuffer>,
        flag: Option<usize>,
        steps: Vec<(SequenceStep, StepLabel)>,
    ) -> Result<CommandSequence, SequenceError> {
        let mut buffers = Buffers::new(buffers);
        let command = |(number, (mut step, label)): (usize, (SequenceStep, StepLabel))| {
            step.check_form(number, device)?;
            if let [condition] = &step.operands[..]
                && step.work.is_mark()
            {
                let Some(index) = flag else {
                    return Err(SequenceError::Blocks {
                        step: number,
                        what: "there is no flag to copy its condition to",
                    });
                };
                let layout = Layout::contiguous(*condition.layout.shape());
                let memory = SequenceMemory::Buffer { index, offset: 0 };
                let target = SequenceOperand { memory, dtype: condition.dtype, layout, access: Access::Write };
                step.operands.push(target);
            }
            let mut of_buffers = SmallVec::new();
            for (place, operand) in step.operands.iter().enumerate() {
                let SequenceMemory::Buffer { index, .. } = operand.memory else {
                    let found = "scratch memory".to_owned();
                    return Err(SequenceError::Operands { step: number, expected: "operands in buffers", found });
                };
                if flag == Some(index) && !step.work.is_mark() {
                    let found = format!("the flag, buffer {index}");
                    return Err(SequenceError::Operands { step: number, expected: "operands beside the flag", found });
                }
                buffers.add(number, place, operand)?;
                of_buffers.push(index);
            }
            Ok(Command { step, label, of_buffers })
        };
        let steps = steps.into_iter().enumerate().map(command).collect::<Result<Vec<Command>, _>>()?;
        let parts = parts(&steps, &[])?;
        let has_blocks = parts.iter().any(|part| matches!(part, Part::Test(_)));
        let (stops, identity) = (Arc::default(), Arc::default());
        Ok(CommandSequence { buffers, steps, fused: Vec::new(), parts, has_blocks, flag, stops, identity })
    }

    /// Lets `make` make a kernel for each of the `fusions`, which are in ascending order, and launches it in their place. Where `make` makes none, the
    /// steps are queued one by one. `make` may be [`Device::fuse`](crate::Device::fuse).
    ///
    /// # Errors
    /// [`SequenceError::Group`] if the steps of a fusion cannot run together: what the kernel computes would differ from the steps one by one.
    pub fn fused(
        mut self,
        fusions: &[SequenceFusion],
        make: &mut dyn FnMut(&FusedGroup) -> Option<FusedKernel>,
    ) -> Result<CommandSequence, SequenceError> {
        let mut end = 0;
        for SequenceFusion { steps, unstored } in fusions {
            if steps.is_empty() || steps.start < end || steps.end > self.steps.len() {
                let what = format!("its steps {steps:?} are none, or do not come behind those of the group before");
                return Err(SequenceError::Group { step: steps.start, what });
            }
            end = steps.end;
            let of_group: Vec<&SequenceStep> = self.steps[steps.clone()].iter().map(|command| &command.step).collect();
            let (group, views) = describe(steps.start, &of_group, |step| unstored.contains(&(steps.start + step)))?;
            if let Some(kernel) = make(&group) {
                let of_buffers = views.iter().filter_map(SequenceOperand::buffer).collect();
                self.fused.push(Fused { steps: steps.clone(), kernel, views, of_buffers });
            }
        }
        self.parts = parts(&self.steps, &self.fused)?;
        Ok(self)
    }

    /// Queues each command by itself: no stream launches several by one call.
    #[must_use]
    pub fn one_by_one(mut self) -> CommandSequence {
        for part in &mut self.parts {
            if let Part::Work(stretch) = part {
                stretch.together = false;
            }
        }
        self
    }

    /// Makes loops fail at their next round from the time when `stops` is set: [`SequenceError::Stopped`].
    #[must_use]
    pub fn stopped_by(mut self, stops: Arc<AtomicBool>) -> CommandSequence {
        self.stops = stops;
        self
    }

    /// Whether it has blocks, and so may be queued in several calls.
    pub fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// The bytes that the steps take on the heap.
    pub fn heap_bytes(&self) -> usize {
        let operands: usize = self.steps.iter().map(|command| size_of_val(command.step.operands.as_slice())).sum();
        let lists = size_of_val(self.steps.as_slice()) + size_of_val(self.parts.as_slice());
        let fused: usize = self.fused.iter().map(|fused| size_of_val(fused.views.as_slice())).sum();
        operands + lists + fused + self.buffers.heap_bytes()
    }

    /// Queues commands on the stream of `context`, whose operands are the buffers in the same order, from `position` on: one for each step up to
    /// the next block, and a copy of the condition of that block. Does not wait for them. `run` is the number of the run, which decides about
    /// its random numbers.
    ///
    /// Returns `None` once all commands of the run are queued. Otherwise returns the step that begins the block. Then the caller calls again, with
    /// the same operands and the same position, once all commands that were queued so far have run.
    ///
    /// # Errors
    /// [`SequenceError::Buffers`], and nothing was queued: the context has no stream, the number of operands, or the size or layout of one
    /// differs, or one is written by a step and was declared as read. [`SequenceError::Step`] for the first step that the stream
    /// refuses: the steps before it were queued, and those after it were not. [`SequenceError::Rounds`], [`SequenceError::LoopTime`] and
    /// [`SequenceError::Stopped`] for a `While` that may not begin another round.
    pub fn run(
        &self,
        context: &mut FnContext<'_>,
        run: u64,
        position: &mut SequencePosition,
    ) -> Result<Option<StepLabel>, SequenceError> {
        let Some(CommandCall { stream, operands: buffers, .. }) = &mut context.commands else {
            return Err(SequenceError::Buffers("it was called without the stream of a device".to_owned()));
        };
        self.buffers.check(buffers)?;
        while let Some(part) = self.parts.get(position.next) {
            match part {
                Part::Work(stretch) => {
                    self.queue_stretch(stretch, &mut **stream, buffers, run)?;
                    position.next += 1;
                }
                Part::Jump(to) => position.next = *to,
                Part::Test(test) if std::mem::take(&mut position.is_known) => {
                    let is_true = self.reads_true(test, buffers)?;
                    position.next = test.next(position.next, is_true, &mut position.rounds, &self.stops)?;
                }
                Part::Test(test) => {
                    self.queue(&(test.step..test.step + 1), &mut **stream, buffers, run)?;
                    position.is_known = true;
                    return Ok(Some(self.steps[test.step].label));
                }
            }
        }
        Ok(None)
    }

    /// Whether the flag says that the condition, which was copied to it, is true.
    fn reads_true(&self, test: &Test, buffers: &[Operand]) -> Result<bool, SequenceError> {
        let flag = self.flag.and_then(|flag| buffers.get(flag));
        let flag = flag.unwrap_or_else(|| {
            unreachable!("`new` refuses blocks without a flag, and `check` has counted the buffers")
        });
        let bytes = flag.bytes().map_err(|error| SequenceError::Step { step: test.step, error })?;
        Ok(bytes.first().is_some_and(|byte| *byte != 0))
    }

    /// Queues a command for each step of a stretch, or launches a graph of them.
    fn queue_stretch(
        &self,
        Stretch { steps, together }: &Stretch,
        stream: &mut dyn Commands,
        buffers: &[Operand],
        run: u64,
    ) -> Result<(), SequenceError> {
        let failed = |error| SequenceError::Step { step: steps.start, error };
        if *together {
            let key = GraphKey { sequence: &self.identity, first: steps.start };
            match stream.begin_graph(key, buffers).map_err(failed)? {
                GraphStart::Launched => return Ok(()),
                GraphStart::Capturing => {
                    let captured = self.queue(steps, stream, buffers, run);
                    // If no graph is launched, the steps are queued one by one below; a step that fails returns its error there.
                    if stream.end_graph(captured.is_ok()).map_err(failed)? {
                        return Ok(());
                    }
                }
                GraphStart::Queue => {}
            }
        }
        self.queue(steps, stream, buffers, run)
    }

    /// Queues a command for each of these steps, or for each group of them that has a kernel. A group lies within the steps, or outside of them.
    fn queue(
        &self,
        steps: &Range<usize>,
        stream: &mut dyn Commands,
        buffers: &[Operand],
        run: u64,
    ) -> Result<(), SequenceError> {
        let mut operands: [Operand; MOST_OPERANDS] = std::array::from_fn(|_| Operand::blank());
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
            // SAFETY: `new` has added the operands of the steps to the buffers, and `check` has accepted those of the call. They give no
            // slices: the host cannot access their memory.
            let set = unsafe { located(&step.operands, buffers, &mut operands) };
            let queued = match (&step.work, set) {
                (SequenceWork::Kernel(kernel, params), operands) => {
                    let inputs = operands.len() - 1;
                    stream.launch(&mut KernelCall { kernel: *kernel, operands, inputs, params })
                }
                (SequenceWork::Draw { kernel, params, advance }, operands) => {
                    let params = &params_of_run(params, *advance, run);
                    stream.launch(&mut KernelCall { kernel: *kernel, operands, inputs: 0, params })
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
fn queue_fused(group: &Fused, label: StepLabel, stream: &mut dyn Commands, buffers: &[Operand]) -> Result<bool, Error> {
    stream.begin_step(label, &group.of_buffers);
    let mut views: SmallVec<[Operand; 8]> = group.views.iter().map(|_| Operand::blank()).collect();
    // SAFETY: the views are those of steps that `new` has added to the buffers, and `check` has accepted the buffers of the call. They give no slices:
    // the host cannot access their memory.
    let views = unsafe { located(&group.views, buffers, &mut views) };
    stream.launch_fused(&group.kernel, views)
}

/// Divides the steps. A single command is queued by itself: a graph would save no call.
///
/// # Errors
/// [`SequenceError::Blocks`]
fn parts(steps: &[Command], fused: &[Fused]) -> Result<Vec<Part<Stretch>>, SequenceError> {
    let mut parts = Parts::new();
    let mut begin = 0;
    let joins = |one: &Command, next: &Command| {
        !one.step.work.is_mark() && !next.step.work.is_mark() && is_same_in_each_run(one) == is_same_in_each_run(next)
    };
    for group in steps.chunk_by(joins) {
        let end = begin + group.len();
        if group[0].step.work.is_mark() {
            parts.mark(begin, &group[0].step)?;
        } else {
            // All steps of a group are the same in each run, so a group lies within one stretch.
            let of_stretch = &fused[fused.partition_point(|fused| fused.steps.start < begin)..];
            let of_stretch = of_stretch.iter().take_while(|fused| fused.steps.start < end);
            let commands = group.len() - of_stretch.map(|fused| fused.steps.len() - 1).sum::<usize>();
            let together = commands > 1 && is_same_in_each_run(&group[0]);
            parts.work(Stretch { steps: begin..end, together });
        }
        begin = end;
    }
    parts.finish(begin)
}

/// Whether the step is the same command in each run over the same buffers, and reports nothing that belongs to one launch.
fn is_same_in_each_run(command: &Command) -> bool {
    match &command.step.work {
        SequenceWork::Kernel(kernel, _) => !kernel.op.refuses_elements(kernel.dtype),
        SequenceWork::Copy | SequenceWork::Fill(_) => true,
        _ => false,
    }
}

#[cfg(test)]
#[path = "command_sequence_tests.rs"]
mod tests;

//! Steps that one instruction queues on the stream of a device which runs commands later, one command for each step or for each group of fused steps.
//!
//! As for a sequence on a CPU (`CpuSequence` of `streamvm-cpu`), the operands of the instruction are buffers, and [`CommandSequence::new`] checks all steps
//! once.
//!
//! Neighbouring steps that are the same commands in each run over the same buffers are announced to the stream together
//! ([`Graphs::begin_graph`](crate::Graphs::begin_graph)), which may launch them by one call. Two kinds of step are queued one by one: a
//! kernel that refuses elements, because it reports them for each launch, and a kernel that draws random numbers, because its parameters
//! differ in each run.
//!
//! Steps may be divided into branches ([`CommandSequence::on_lanes`]), which lanes of the stream run side by side; the graph of announced steps then has
//! the same lanes.
//!
//! Elementwise steps that a kernel of the device computes together ([`CommandSequence::fused`]) are one command.
//!
//! Where a block begins, the condition is in memory of the device. The sequence queues a copy of it to a *flag*, a buffer in page-locked
//! memory of the host, and returns. Once the copy has run, the caller calls the sequence again at the `SequencePosition` that it has
//! reached; it reads the flag and queues the commands that follow.
//!
//! Blocks whose steps are all announced together can be announced as a whole ([`Graphs::begin_block_graph`](crate::Graphs::begin_block_graph)): then the device
//! decides about them. Branches without loops are announced with the steps around them, and no condition is copied. A loop, or a branch with a loop in it, is
//! announced once its condition is known, and the sequence returns after it, because it must learn how the loop has ended before it queues what follows. So
//! nothing of a loop is launched while the caller may still find out that an input has failed.
//!
//! Some steps of blocks are not the device's ([`OtherSteps`](crate::OtherSteps)). Before such a step the sequence returns, too, unless nothing was queued since
//! it was called again. Then the host runs the step, and the sequence goes on; or it is queued on a stream of another device, and the sequence returns until it has run.
//!
//! A sequence that is looked into ([`CommandSequence::checking_finite`], [`CommandSequence::timing`]) returns after each command in the same way: when it
//! is called again, the command has run, so its output, which was copied to the flag, and its time are known.

mod block_graphs;
mod by_others;
mod stages;
mod stretches;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use smallvec::SmallVec;

use crate::call::fn_context::FnContext;
use crate::call::label::ProgramStep;
use crate::call::operand::Operand;
use crate::call::prepared::{Prepared, SegmentRun, SequenceTime};
use crate::errors::sequence_error::SequenceError;
use crate::names::device_kind::DeviceKind;
use crate::sequence::block_graph::{self, BlockGraph};
use crate::sequence::blocks::{Part, Rounds, Test};
use crate::sequence::branches::{Branches, SequenceBranch};
use crate::sequence::buffers::{Buffers, SequenceBuffer};
use crate::sequence::command_sequence::stages::Stage;
use crate::sequence::command_sequence::stretches::{RunNow, Stretch, commands, is_announced, parts};
use crate::sequence::commands::Commands;
use crate::sequence::fused::describe;
use crate::sequence::fused_group::{FusedGroup, FusedKernel};
use crate::sequence::graph::{GraphKey, GraphOwner};
use crate::sequence::group::SequenceGroup;
use crate::sequence::looks::Look;
use crate::sequence::others::{Code, LentRun, OtherSteps, OtherWork};
use crate::sequence::segment::{Segment, SequenceFlag};
use crate::sequence::step::{MOST_OPERANDS, SequenceMemory, SequenceOperand, SequenceStep};
use crate::sequence::times::PartTime;

/// Steps for one kind of device that were checked: every operand lies within its buffer.
#[derive(Debug)]
pub struct CommandSequence {
    buffers: Buffers,
    steps: Vec<Command>,
    /// Steps that one kernel computes, in ascending order.
    fused: Vec<Fused>,
    /// All steps in order: where blocks begin and end, and the stretches between.
    parts: Vec<Part<Stretch>>,
    branches: Branches,
    /// Parts with blocks that are announced as a whole, in ascending order.
    block_graphs: Vec<BlockGraph>,
    has_blocks: bool,
    /// The steps that others run, in ascending order.
    others: Vec<OtherSteps>,
    /// The buffer that conditions and outputs are copied to, where the host reads them.
    flag: Option<usize>,
    /// For each step how its output is looked at; empty unless runs look for infinities and NaN.
    looks: Vec<Option<Look>>,
    /// For each part how long it took so far, if runs are timed.
    times: Option<Box<[PartTime]>>,
    /// Set when loops must end.
    stops: Arc<AtomicBool>,
    /// Names this sequence to streams.
    graphs: GraphOwner,
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

#[derive(Debug)]
struct Command {
    /// The step. One that begins a block has the flag as a second operand.
    step: SequenceStep,
    label: ProgramStep,
    /// For each operand its buffer.
    of_buffers: SmallVec<[usize; MOST_OPERANDS]>,
}

/// How far a run of a [`CommandSequence`] has come; by default at its beginning.
#[derive(Debug, Default)]
pub(crate) struct SequencePosition {
    /// The part that is next.
    next: usize,
    /// Whether what that part needs was copied to the flag: the condition of the block that it begins, or what the host copies on.
    is_known: bool,
    /// Whether the run has paused before.
    has_paused: bool,
    /// Whether all that was queued before has completed: the run has paused and queued nothing since.
    is_drained: bool,
    /// What was queued of the command of that part, if the sequence is looked into.
    stage: Stage,
    rounds: Rounds,
    /// The run of that part on another device, if it has begun.
    lent: Option<LentRun>,
    /// Whether a loop was launched as a whole before that part, and has run.
    has_run_loop: bool,
    /// When the command of that part was queued, if the sequence is looked into.
    begun: Option<Instant>,
}

/// Makes a kernel of a group of elementwise steps; `None` if there will be none.
pub type MakeKernel<'m> = dyn FnMut(&FusedGroup) -> Option<FusedKernel> + 'm;

impl CommandSequence {
    /// Prepares a segment for a kind of device. `make` makes kernels of groups, for streams that have [`Graphs`](crate::Graphs); without it the steps are queued one by one, in
    /// their order.
    ///
    /// # Errors
    /// Those of [`Device::prepare`](crate::Device::prepare).
    pub fn of_segment(
        device: DeviceKind,
        segment: Segment,
        make: Option<&mut MakeKernel<'_>>,
    ) -> Result<CommandSequence, SequenceError> {
        let Segment { buffers, steps, groups, branches, flag, others, options } = segment;
        let mut sequence = CommandSequence::with_others(device, buffers, flag, steps, others)?;
        (sequence.stops, sequence.graphs) = (options.stops, options.graphs);
        let smallest_graph = options.smallest_graph.filter(|_| make.is_some());
        if let Some(make) = make {
            sequence = sequence.fused(&groups, make)?;
            if !branches.is_empty() {
                sequence = sequence.on_lanes(branches)?;
            }
        }
        if options.checks_finite {
            sequence = sequence.checking_finite()?;
        }
        if options.times_steps {
            sequence = sequence.timing();
        }
        Ok(match smallest_graph {
            Some(calls) => sequence.announcing_from(calls),
            None => sequence.one_by_one(),
        })
    }

    /// Names the commands from a step on to streams.
    fn graph_key(&self, first: usize) -> GraphKey<'_> {
        GraphKey { owner: &self.graphs, first }
    }

    /// The sequence that [`Device::prepare`](crate::Device::prepare) has made.
    ///
    /// # Errors
    /// [`SequenceError::Foreign`] if it has made something else.
    pub fn of(prepared: &dyn Prepared) -> Result<&CommandSequence, SequenceError> {
        let prepared: &dyn Any = prepared;
        prepared.downcast_ref().ok_or(SequenceError::Foreign)
    }

    /// [`Stream::execute`](crate::Stream::execute) on `stream`.
    ///
    /// # Errors
    /// [`SequenceError::Refused`] if a written operand shares bytes with another one; [`SequenceError::Foreign`] for a run that another backend began.
    /// [`SequenceError::Buffers`], and nothing was queued: the number of operands, or the size or layout of one
    /// differs, or one is written by a step and was declared as read. [`SequenceError::Step`] for the first step that the stream
    /// refuses: the steps before it were queued, and those after it were not. [`SequenceError::NotFinite`] for one that has made an infinity or NaN of finite inputs.
    /// [`SequenceError::Rounds`], [`SequenceError::LoopTime`] and
    /// [`SequenceError::Stopped`] for a `While` that may not begin another round.
    pub fn execute(
        &self,
        stream: &mut dyn Commands,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        FnContext::check(operands).map_err(SequenceError::Refused)?;
        let mut position = match run.position.take().map(|position| position.downcast::<SequencePosition>()) {
            None => {
                SequencePosition { rounds: Rounds::after(run.rounds, run.loops_since), ..SequencePosition::default() }
            }
            Some(Ok(position)) => *position,
            Some(Err(_)) => return Err(SequenceError::Foreign),
        };
        let step = self.run(stream, operands, (run.number, run.instruction), &mut position)?;
        (run.rounds, run.loops_since) = (position.rounds.made(), position.rounds.since());
        if step.is_some() {
            run.position = Some(Box::new(position));
        }
        Ok(step)
    }

    /// Checks `steps` for devices of this kind, whose operands are views of buffers of `buffers` bytes each. If there are blocks, `flag` is a
    /// buffer of at least one byte that no step uses.
    ///
    /// # Errors
    /// [`SequenceError::Operands`] and [`SequenceError::PastBuffer`]; [`SequenceError::Blocks`] if a block does not end where it must, or if
    /// there is one and no flag.
    pub fn new(
        device: DeviceKind,
        buffers: &[usize],
        flag: Option<SequenceFlag>,
        steps: Vec<(SequenceStep, ProgramStep)>,
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
        flag: Option<SequenceFlag>,
        steps: Vec<(SequenceStep, ProgramStep)>,
    ) -> Result<CommandSequence, SequenceError> {
        CommandSequence::with_others(device, buffers, flag, steps, Vec::new())
    }

    /// [`over`](CommandSequence::over) with steps that others run.
    fn with_others(
        device: DeviceKind,
        buffers: Vec<SequenceBuffer>,
        flag: Option<SequenceFlag>,
        steps: Vec<(SequenceStep, ProgramStep)>,
        others: Vec<OtherSteps>,
    ) -> Result<CommandSequence, SequenceError> {
        by_others::check(&others, steps.len())?;
        let flag = flag.map(|SequenceFlag(buffer)| buffer);
        let mut buffers = Buffers::new(buffers);
        let command = |(number, (mut step, label)): (usize, (SequenceStep, ProgramStep))| {
            // Another device has checked the form of the steps that it runs.
            let others = by_others::at(&others, number);
            if !others.is_some_and(OtherSteps::are_all_of_others) {
                step.check_form(number, device)?;
            }
            by_others::check_condition(number, &step, others)?;
            let in_buffer = |operand: &SequenceOperand| match operand.memory {
                SequenceMemory::Buffer { index, .. } if flag == Some(index) => {
                    let found = format!("the flag, buffer {index}");
                    Err(SequenceError::Operands { step: number, expected: "operands beside the flag", found })
                }
                SequenceMemory::Buffer { index, .. } => Ok(index),
                // The host has scratch memory of its own.
                SequenceMemory::Scratch(_) if others.is_some_and(OtherSteps::are_all_of_others) => Ok(usize::MAX),
                SequenceMemory::Scratch(_) => {
                    let found = "scratch memory".to_owned();
                    Err(SequenceError::Operands { step: number, expected: "operands in buffers", found })
                }
            };
            let mut of_buffers = step.operands.iter().map(in_buffer).collect::<Result<_, _>>()?;
            by_others::insert_flag(number, &mut step, others, flag, &mut of_buffers)?;
            for (place, operand) in step.operands.iter().enumerate() {
                buffers.add(number, place, operand)?;
            }
            Ok(Command { step, label, of_buffers })
        };
        let steps = steps.into_iter().enumerate().map(command).collect::<Result<Vec<Command>, _>>()?;
        for (first, code) in others.iter().flat_map(|it| it.all_code().map(|code| (it.steps.start, code))) {
            for (number, (_, uses)) in code.uses().enumerate() {
                let mut operands = uses.operands.iter().enumerate();
                operands.try_for_each(|(place, operand)| buffers.add(first + number, place, operand))?;
            }
        }
        let parts = parts(&steps, &[], &others, false)?;
        let has_blocks = parts.iter().any(|part| matches!(part, Part::Test(_)));
        let (stops, graphs) = (Arc::default(), GraphOwner::default());
        let (fused, branches, looks, times) = (Vec::new(), Branches::default(), Vec::new(), None);
        let mut sequence = CommandSequence {
            buffers,
            steps,
            fused,
            parts,
            branches,
            block_graphs: Vec::new(),
            has_blocks,
            others,
            flag,
            looks,
            times,
            stops,
            graphs,
        };
        sequence.block_graphs = sequence.found_block_graphs();
        Ok(sequence)
    }

    /// The parts with blocks that can be announced as a whole.
    fn found_block_graphs(&self) -> Vec<BlockGraph> {
        let is_on_device = |test: &Test| self.others_at(test.step).is_none();
        block_graph::graphs_of(&self.parts, |stretch| is_announced(stretch, &self.steps, &self.others), is_on_device)
    }

    /// Lets `make` make a kernel for each of the `groups`, which are in ascending order, and launches it in their place. Where `make` makes none, the
    /// steps are queued one by one.
    ///
    /// # Errors
    /// [`SequenceError::Group`] if the steps of a group cannot run together: what the kernel computes would differ from the steps one by one.
    pub fn fused(
        mut self,
        groups: &[SequenceGroup],
        make: &mut dyn FnMut(&FusedGroup) -> Option<FusedKernel>,
    ) -> Result<CommandSequence, SequenceError> {
        let mut end = 0;
        for SequenceGroup { steps, unstored, .. } in groups {
            if steps.is_empty() || steps.start < end || steps.end > self.steps.len() {
                let what = format!("its steps {steps:?} are none, or do not come after those of the group before");
                return Err(SequenceError::Group { step: steps.start, what });
            }
            if !self.branches.holds_together(steps) {
                let what = format!("its steps {steps:?} are in several branches");
                return Err(SequenceError::Group { step: steps.start, what });
            }
            let next = self.others.get(self.others.partition_point(|others| others.steps.end <= steps.start));
            if next.is_some_and(|others| others.steps.start < steps.end) {
                let what = format!("others run some of its steps {steps:?}");
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
        self.divide();
        Ok(self)
    }

    /// Runs the steps on several lanes of the stream, as these branches say. There are no blocks, and what one kernel computes is within a branch. Branches
    /// that use the same bytes, one of them writing, wait for each other, directly or by way of others: that is not checked here.
    ///
    /// # Errors
    /// [`SequenceError::Branches`] if the branches do not have each step once and in order, if one waits for a later one, if there are blocks, or if the
    /// steps of a kernel are in several branches.
    pub fn on_lanes(mut self, branches: Vec<SequenceBranch>) -> Result<CommandSequence, SequenceError> {
        self.branches = Branches::new(branches, self.steps.len())?;
        if let Some(mark) = self.steps.iter().position(|command| command.step.work.is_mark()) {
            return Err(SequenceError::Branches { step: mark, what: "it begins or ends a block".to_owned() });
        }
        if let Some(others) = self.others.first() {
            return Err(SequenceError::Branches { step: others.steps.start, what: "another one runs it".to_owned() });
        }
        if let Some(fused) = self.fused.iter().find(|fused| !self.branches.holds_together(&fused.steps)) {
            let what = format!("one kernel computes the steps {:?}, which are in several branches", fused.steps);
            return Err(SequenceError::Branches { step: fused.steps.start, what });
        }
        Ok(self)
    }

    /// Makes runs look for infinities and NaN in what each step writes, and where they find one, in what it reads. A run returns after each command, as it does where
    /// a block begins: the output was copied to the flag, which must have room for the largest output and input of floats. No steps are fused.
    ///
    /// # Errors
    /// [`SequenceError::Operands`] if there is no flag, and [`SequenceError::PastBuffer`] if it is too small for an operand of a step.
    pub fn checking_finite(mut self) -> Result<CommandSequence, SequenceError> {
        let (flag, buffers) = (self.flag, &mut self.buffers);
        let others = &self.others;
        // Others look at what they write by themselves, and a copy makes no infinity.
        let look = |(number, command): (usize, &Command)| match by_others::at(others, number) {
            Some(_) => Ok(None),
            None => Look::new(number, &command.step, flag, buffers),
        };
        self.looks = self.steps.iter().enumerate().map(look).collect::<Result<_, _>>()?;
        self.fused.clear();
        self.divide();
        Ok(self)
    }

    /// Makes runs note how long each step takes: see [`Prepared::times`]. A run returns after each command, as it does where a block begins.
    #[must_use]
    pub fn timing(mut self) -> CommandSequence {
        self.times = Some(Box::default());
        self.divide();
        self
    }

    /// Whether a run returns after each command.
    fn is_looked_into(&self) -> bool {
        !self.looks.is_empty() || self.times.is_some()
    }

    /// Divides the steps anew.
    fn divide(&mut self) {
        let parts = parts(&self.steps, &self.fused, &self.others, self.is_looked_into());
        self.parts = parts.unwrap_or_else(|_| unreachable!("`new` has found that all blocks end"));
        self.block_graphs = if self.is_looked_into() { Vec::new() } else { self.found_block_graphs() };
        if let Some(times) = &mut self.times {
            *times = self.parts.iter().map(|_| PartTime::default()).collect();
        }
    }

    /// Queues each command by itself: no stream launches several by one call.
    #[must_use]
    pub fn one_by_one(mut self) -> CommandSequence {
        self.block_graphs.clear();
        for part in &mut self.parts {
            if let Part::Work(stretch) = part {
                stretch.together = false;
            }
        }
        self
    }

    /// Announces steps without blocks only where they are at least so many calls of a driver: one for each command, and those for the events of lanes. A
    /// graph of fewer costs more than it saves. Blocks are announced however few steps they have, because that saves waits of the host. Call it after all
    /// that divides the steps: fusion, lanes and looks.
    #[must_use]
    pub fn announcing_from(mut self, calls: usize) -> CommandSequence {
        let is_large = |part: &Part<Stretch>| match part {
            Part::Work(Stretch { steps, .. }) => commands(steps, &self.fused) + self.branches.calls(steps) >= calls,
            _ => false,
        };
        let is_large: Vec<bool> = self.parts.iter().map(is_large).collect();
        for (part, is_large) in self.parts.iter_mut().zip(is_large) {
            if let Part::Work(stretch) = part {
                stretch.together &= is_large;
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

    /// Queues commands on `stream` over `buffers`, which are the buffers in the same order, from `position` on: one for each step up to
    /// the next block whose condition the host reads, and a copy of that condition, or up to the next step that the host runs. If it is looked into, one for the next step, and a
    /// copy of its output. Does not wait for them. `number` is the number of the run, which decides about its random numbers, and `instruction`
    /// the stream and the number of the instruction.
    ///
    /// Returns `None` once all commands of the run are queued. Otherwise returns the step that begins the block, that the host runs next, or whose command was queued. Then the caller
    /// calls again, with the same operands and the same position, once everything that was queued on the stream so far has run.
    ///
    /// # Errors
    /// Those of [`execute`](CommandSequence::execute), without these two.
    pub(crate) fn run(
        &self,
        stream: &mut dyn Commands,
        buffers: &mut [Operand<'static>],
        (number, instruction): (u64, (u32, u64)),
        position: &mut SequencePosition,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        self.buffers.check(buffers)?;
        position.is_drained = std::mem::replace(&mut position.has_paused, true);
        if std::mem::take(&mut position.has_run_loop)
            && let Some(graphs) = stream.graphs()
        {
            self.note_loop(graphs.loops_run(), position)?;
        }
        while let Some(part) = self.parts.get(position.next) {
            let run = RunNow { number, rounds: position.rounds.made(), instruction };
            if !position.is_known && self.launch_blocks(stream, buffers, run, position)? {
                position.is_drained = false;
                continue;
            }
            match part {
                Part::Work(stretch) if let Some(others) = self.others_at(stretch.steps.start) => {
                    if let Some(step) = self.run_by_others(others, stream, buffers, run, position)? {
                        return Ok(Some(step));
                    }
                    position.next += 1;
                }
                Part::Work(stretch) if self.is_looked_into() => {
                    if let Some(stage) = self.next_stage(stretch, position, buffers)? {
                        if matches!(stage, Stage::Ran { .. }) {
                            position.begun = self.times.is_some().then(Instant::now);
                        }
                        self.queue_stage(&stage, stretch, stream, buffers, run)?;
                        position.stage = stage;
                        return Ok(Some(self.steps[stretch.steps.start].label));
                    }
                    position.next += 1;
                }
                Part::Work(stretch) => {
                    self.queue_stretch(stretch, stream, buffers, run)?;
                    (position.next, position.is_drained) = (position.next + 1, false);
                }
                Part::Jump(to) => position.next = *to,
                Part::Test(test) => {
                    let paused = match self.others_at(test.step) {
                        _ if position.is_known => None,
                        Some(others) => self.run_by_others(others, stream, buffers, run, position)?,
                        None => {
                            self.queue(&(test.step..test.step + 1), stream, buffers, run)?;
                            position.is_known = true;
                            Some(self.steps[test.step].label)
                        }
                    };
                    if let Some(step) = paused {
                        return Ok(Some(step));
                    }
                    let is_true = self.reads_true(test, buffers)?;
                    let has_steps = is_true || test.has_else();
                    let is_launched = has_steps && self.launch_blocks(stream, buffers, run, position)?;
                    position.is_known = false;
                    if is_launched {
                        return Ok(Some(self.steps[test.step].label));
                    }
                    position.next = test.next(position.next, is_true, &mut position.rounds, &self.stops)?;
                }
            }
        }
        Ok(None)
    }

    /// Whether the host reads a condition where it is, and not in the flag.
    fn is_in_memory_of_host(&self, test: &Test) -> bool {
        self.others_at(test.step).is_some_and(|others| matches!(others.work, OtherWork::Condition))
    }

    /// Whether the flag says that the condition, which was copied to it, is true. One that is in memory of the host is read there.
    fn reads_true(&self, test: &Test, buffers: &[Operand<'static>]) -> Result<bool, SequenceError> {
        if self.is_in_memory_of_host(test) {
            return by_others::reads_true(test, buffers);
        }
        let flag = self.flag.and_then(|flag| buffers.get(flag));
        let flag = flag.unwrap_or_else(|| {
            unreachable!("`new` refuses blocks without a flag, and `check` has counted the buffers")
        });
        let bytes = flag.bytes().map_err(|error| SequenceError::Step { step: test.step, error })?;
        Ok(bytes.first().is_some_and(|byte| *byte != 0))
    }
}

impl Prepared for CommandSequence {
    /// It has blocks or steps of others, or is looked into.
    fn pauses(&self) -> bool {
        self.has_blocks || self.is_looked_into() || !self.others.is_empty()
    }

    fn calls_functions(&self) -> bool {
        self.others.iter().filter_map(OtherSteps::code).any(|code| code.prepared().calls_functions())
    }

    /// From when the command of a step was queued until the caller has called again: the time in which the host learns that the command has run is part of it, and so
    /// is that of copying the output if it is looked at. Of a step that another one runs the time that this one tells, and of a copy by way of the flag that of the host.
    fn times(&self) -> Vec<SequenceTime> {
        let of_part = |(part, time): (&Part<Stretch>, &PartTime)| -> Vec<SequenceTime> {
            let Part::Work(stretch) = part else { return Vec::new() };
            match self.others_at(stretch.steps.start).and_then(OtherSteps::code) {
                Some(code) => code.times(stretch.steps.start),
                None => vec![time.read(stretch.steps.clone())],
            }
        };
        self.parts.iter().zip(self.times.iter().flatten()).flat_map(of_part).collect()
    }

    fn heap_bytes(&self) -> usize {
        let operands: usize = self.steps.iter().map(|command| size_of_val(command.step.operands.as_slice())).sum();
        let lists = size_of_val(self.steps.as_slice()) + size_of_val(self.parts.as_slice());
        let lists = lists + size_of_val(self.block_graphs.as_slice());
        let fused: usize = self.fused.iter().map(|fused| size_of_val(fused.views.as_slice())).sum();
        let looks = size_of_val(self.looks.as_slice()) + self.times.as_deref().map_or(0, size_of_val);
        let code = self.others.iter().flat_map(OtherSteps::all_code).map(Code::heap_bytes);
        let lists = lists + size_of_val(self.others.as_slice()) + code.sum::<usize>();
        operands + lists + fused + looks + self.buffers.heap_bytes() + self.branches.heap_bytes()
    }
}

#[cfg(test)]
#[path = "command_sequence_block_tests.rs"]
mod block_tests;
#[cfg(test)]
#[path = "command_sequence_tests.rs"]
mod tests;

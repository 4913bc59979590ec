//! Finds the kernels of a compiled program, and runs its segments.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hashbrown::HashMap;
use streamvm_cpu::CpuSequence;
use streamvm_ep::{
    CommandSequence, DeviceKind, FnContext, FnError, InlineFn, Layout, ProgramStep, RestOfCommands, SequenceBranch,
    SequenceBuffer, SequenceError, SequenceFlag, SequenceFunction, SequenceFusion, SequenceGroup, SequenceMemory,
    SequenceOperand, SequencePosition, SequenceStep, SequenceWork,
};
use streamvm_instructions::{Cause, Error, ProgramError};
use streamvm_program::{
    BufferRole, Compiled, CompiledStep, FusedBy, FusedSteps, Located, Segment, SegmentBranch, SegmentUse, StepFunction,
    Storage, ValueId, Work,
};

use crate::dispatch::function_outcome::FunctionOutcome;
use crate::execute::environment::Environment;
use crate::program_cache::function::{CallTime, LoadedFunction};
use crate::program_cache::loaded::{LoadedProgram, LoadedSegment};
use crate::program_cache::only_kernel::OnlyKernel;
use crate::sync::engine_thread;

impl LoadedProgram {
    /// Finds the kernels of a compiled program.
    ///
    /// # Errors
    /// The engine has no such device; an op has no kernel for a dtype.
    pub(crate) fn new(env: &Environment, compiled: Compiled) -> Result<LoadedProgram, Error> {
        for device in compiled.devices() {
            env.devices.get(device)?;
        }
        let segments =
            compiled.segments().iter().map(|segment| load(env, &compiled, segment)).collect::<Result<_, _>>()?;
        let places: HashMap<ValueId, usize> = compiled
            .buffers()
            .iter()
            .enumerate()
            .filter_map(|(place, buffer)| match buffer.role {
                BufferRole::Fetched(value) => Some((value, place)),
                _ => None,
            })
            .collect();
        let fetches = compiled.program().fetches.iter().map(|fetch| places[&fetch.value]).collect();
        let draws = compiled.draws();
        let only_kernel = OnlyKernel::of(&compiled).map(Box::new);
        Ok(LoadedProgram { compiled, segments, only_kernel, fetches, draws, next_run: AtomicU64::new(0) })
    }

    /// Runs or queues the steps of a segment in the run of this number, up to the first block whose condition the host cannot read yet: then the
    /// rest is left in `context`. An error names the step, and the source line that recorded it.
    pub(crate) fn call(self: &Arc<Self>, segment: usize, run: u64, context: &mut FnContext<'_>) -> Result<(), FnError> {
        let ran = match &self.segments[segment] {
            LoadedSegment::Cpu(sequence) => sequence.run(context, run),
            LoadedSegment::Commands(sequence) => {
                let mut position = SequencePosition::default();
                let queued = sequence.run(context, run, &mut position);
                queued.map(|block| {
                    if let Some(condition) = block {
                        self.leave_rest((segment, run), Box::new(position), condition, context);
                    }
                })
            }
            LoadedSegment::Function(function) => {
                return function.call(context).map_err(|error| self.failed_step(segment, 0, error));
            }
            LoadedSegment::Transfer => unreachable!("a transfer is submitted as a copy"),
            LoadedSegment::SectionMark => unreachable!("a section begins and ends by instructions without code"),
        };
        ran.map_err(|error| self.failed(segment, error))
    }

    /// Leaves what is to be done once the condition of a block is known.
    fn leave_rest(
        self: &Arc<Self>,
        (segment, run): (usize, u64),
        mut position: Box<SequencePosition>,
        condition: ProgramStep,
        context: &mut FnContext<'_>,
    ) {
        let inner = self.clone();
        let function = InlineFn::new(move |context: &mut FnContext<'_>| {
            let LoadedSegment::Commands(sequence) = &inner.segments[segment] else {
                unreachable!("only a sequence of commands leaves a rest")
            };
            match sequence.run(context, run, &mut position) {
                Ok(None) => Ok(()),
                Ok(Some(condition)) => {
                    inner.leave_rest((segment, run), position, condition, context);
                    Ok(())
                }
                Err(error) => Err(inner.failed(segment, error)),
            }
        });
        if let Some(call) = &mut context.commands {
            call.rest = Some(RestOfCommands { condition, function });
        }
    }

    /// The failure of a step of a segment, with the text of its error.
    #[cold]
    fn failed_step(&self, segment: usize, step: usize, error: String) -> FnError {
        let first = self.compiled.segments()[segment].steps.start;
        let step = self.compiled.steps()[first + step].named();
        FnError::from(FunctionOutcome::Failed(Cause::Step { step, error }))
    }

    #[cold]
    fn failed(&self, segment: usize, error: SequenceError) -> FnError {
        let at_step = |step: usize, error: String| self.failed_step(segment, step, error);
        match error {
            // Keep this cause: the engine recognises a lost device by it.
            SequenceError::Step { error: error @ streamvm_ep::Error::DeviceLost { .. }, .. } => {
                FnError::from(FunctionOutcome::Failed(Cause::Device(error)))
            }
            SequenceError::Step { step, error } => at_step(step, error.to_string()),
            SequenceError::Function { step, error } => at_step(step, error),
            SequenceError::NotFinite { step, index, value } => {
                at_step(step, format!("element {index:?} of its output is {value}"))
            }
            SequenceError::Rounds { step, rounds } => at_step(
                step,
                format!(
                    "its condition is still true after {rounds} rounds of all loops, the most that a run may make; if it needs more, \
                     compile the program with more `most_rounds`"
                ),
            ),
            SequenceError::LoopTime { step, most, rounds } => at_step(
                step,
                format!(
                    "its condition is still true after {most:?} and {rounds} rounds of all loops, the longest that they may take; if they need \
                     longer, compile the program with a larger `most_loop_time`"
                ),
            ),
            SequenceError::Stopped { step } => at_step(
                step,
                "the engine was shut down, and its limit is over: the loop was stopped before its condition was false"
                    .to_owned(),
            ),
            other => other.into(),
        }
    }
}

/// A segment with the kernels that run it.
fn load(env: &Environment, compiled: &Compiled, segment: &Segment) -> Result<LoadedSegment, Error> {
    if segment.is_transfer() {
        return Ok(LoadedSegment::Transfer);
    }
    if segment.is_section_mark() {
        return Ok(LoadedSegment::SectionMark);
    }
    if let Some(function) = compiled.function_of(segment) {
        let time = compiled.times_steps().then(CallTime::default);
        return Ok(LoadedSegment::Function(load_function(compiled, function, time)?));
    }
    let kind = segment.stream.device.kind;
    let buffer = |segment_use: &SegmentUse| match (&segment_use.view, compiled.value_of(segment_use.buffer)) {
        (Some(view), Some(value)) => {
            SequenceBuffer::View { layout: *view, element: compiled.program().value(value).dtype.size() }
        }
        _ => SequenceBuffer::Bytes(segment_use.bytes.len()),
    };
    let buffers: Vec<SequenceBuffer> = segment.uses.iter().map(buffer).collect();
    let steps = compiled.steps()[segment.steps.clone()].iter();
    let load = |step: &CompiledStep| sequence_step(env, kind, segment, step, compiled);
    // Groups are in the order of their steps, each within one segment.
    let first = compiled.fused().partition_point(|group| group.steps.start < segment.steps.start);
    let groups = compiled.fused()[first..].iter().take_while(|group| group.steps.end <= segment.steps.end);
    let of_segment = |steps: &Range<usize>| steps.start - segment.steps.start..steps.end - segment.steps.start;
    let loaded = if kind.is_cpu() {
        // Only functions and loops can hang.
        let may_hang = |step: &CompiledStep| matches!(step.work, Work::Function(_) | Work::While);
        let labels = steps.clone().any(may_hang).then(|| steps.clone().map(CompiledStep::named).collect());
        let steps: Vec<SequenceStep> = steps.map(load).collect::<Result<_, Error>>()?;
        let block_by_block = |group: &FusedSteps| match group.by {
            FusedBy::Blocks(block) => Some(SequenceGroup { steps: of_segment(&group.steps), block }),
            FusedBy::Kernel { .. } => None,
        };
        let groups: Vec<SequenceGroup> = groups.filter_map(block_by_block).collect();
        // Where callers run all work, functions are called in their threads, in the order of the steps.
        let side_by_side = env.threaded || !steps.iter().any(|step| matches!(step.work, SequenceWork::Function(_)));
        let branches = if side_by_side { branches(segment) } else { Vec::new() };
        let sequence = CpuSequence::over(buffers, steps, &groups, &branches);
        sequence.map(|sequence| {
            let sequence = sequence.checking_finite(compiled.checks_finite()).stopped_by(env.stops_loops.clone());
            let sequence = match labels {
                Some(labels) => sequence.labelled(labels),
                None => sequence,
            };
            LoadedSegment::Cpu(if compiled.times_steps() { sequence.timing() } else { sequence })
        })
    } else {
        let steps = steps.map(|step| Ok((load(step)?, step.named()))).collect::<Result<_, Error>>()?;
        let device = env.devices.get(segment.stream.device)?;
        let fusions: Vec<SequenceFusion> = groups.map(|group| fusion(compiled, group, of_segment)).collect();
        let sequence = CommandSequence::over(kind, buffers, flag(compiled, segment), steps);
        let sequence = sequence.and_then(|sequence| sequence.fused(&fusions, &mut |group| device.fuse(group)));
        let branches = branches(segment);
        let sequence = sequence.and_then(|it| if branches.is_empty() { Ok(it) } else { it.on_lanes(branches) });
        let sequence = sequence.and_then(|it| if compiled.checks_finite() { it.checking_finite() } else { Ok(it) });
        sequence.map(|sequence| {
            let sequence = if compiled.times_steps() { sequence.timing() } else { sequence };
            let sequence = sequence.stopped_by(env.stops_loops.clone());
            let sequence = match compiled.captures() {
                true => sequence.announcing_from(compiled.smallest_graph()),
                false => sequence.one_by_one(),
            };
            LoadedSegment::Commands(Box::new(sequence))
        })
    };
    loaded.map_err(|error| {
        let number = match &error {
            SequenceError::Operands { step, .. }
            | SequenceError::PastBuffer { step, .. }
            | SequenceError::Group { step, .. }
            | SequenceError::Branches { step, .. }
            | SequenceError::Blocks { step, .. } => Some(segment.steps.start + step),
            _ => None,
        };
        let step = number.and_then(|number| compiled.steps().get(number)).map(CompiledStep::named);
        let what = match step {
            Some(_) => format!("cannot be loaded; in the numbers of its segment: {error}"),
            None => error.to_string(),
        };
        ProgramError::NotCompiled { program: compiled.program().name.clone(), step, what }.into()
    })
}

/// The buffer to which conditions of blocks and outputs are copied for the host.
#[allow(unsafe_code, reason = "says that the host may read the flag")]
fn flag(compiled: &Compiled, segment: &Segment) -> Option<SequenceFlag> {
    let is_flag = |it: &SegmentUse| matches!(compiled.buffers()[it.buffer].role, BufferRole::Flag(_));
    let place = segment.uses.iter().position(is_flag)?;
    // SAFETY: the compiler gives a flag page-locked memory of the host. The engine calls the rest of a segment once the device has passed what was queued
    // before: see `RestOfCommands`.
    Some(unsafe { SequenceFlag::new(place) })
}

/// The branches of a segment, in the numbers of its steps.
fn branches(segment: &Segment) -> Vec<SequenceBranch> {
    let first = segment.steps.start;
    let branch = |branch: &SegmentBranch| SequenceBranch {
        steps: branch.steps.start - first..branch.steps.end - first,
        lane: branch.lane,
        after: branch.after.clone(),
    };
    segment.branches.iter().map(branch).collect()
}

/// Steps that one kernel of the device may compute. `of_segment` counts their positions from the first step of the segment.
fn fusion(
    compiled: &Compiled,
    group: &FusedSteps,
    of_segment: impl Fn(&Range<usize>) -> Range<usize>,
) -> SequenceFusion {
    let steps = of_segment(&group.steps);
    let is_unstored = |step: &CompiledStep| step.operands.last().is_some_and(|output| group.is_unstored(output.value));
    let of_group = compiled.steps()[group.steps.clone()].iter().zip(steps.clone());
    let unstored = of_group.filter(|(step, _)| is_unstored(step)).map(|(_, number)| number).collect();
    SequenceFusion { steps, unstored }
}

/// A step of the compiler with the kernel that runs it.
fn sequence_step(
    env: &Environment,
    kind: DeviceKind,
    segment: &Segment,
    step: &CompiledStep,
    compiled: &Compiled,
) -> Result<SequenceStep, Error> {
    let work = match &step.work {
        Work::Call(op, params) => {
            let dtype = step.operands[op.key_input()].dtype;
            let kernel = env.kernels.get(*op, kind, dtype)?;
            match step.advance {
                0 => SequenceWork::Kernel(kernel, *params),
                advance => SequenceWork::Draw { kernel, params: *params, advance },
            }
        }
        Work::Copy => SequenceWork::Copy,
        Work::Fill(value) => SequenceWork::Fill(*value),
        Work::If => SequenceWork::If,
        Work::Else => SequenceWork::Else,
        Work::While => {
            SequenceWork::While { most_rounds: compiled.most_rounds(), most_time: compiled.most_loop_time() }
        }
        Work::End => SequenceWork::End,
        Work::SectionBegin(_) | Work::SectionEnd(_) => unreachable!("it is a segment by itself, which has no sequence"),
        Work::Function(function) => {
            // The sequence takes the times.
            let loaded = load_function(compiled, function, None)?;
            // Helpers of the pool are not marked as threads of an engine, and a wait in a function must fail there, too.
            let helped = env.threaded && !segment.branches.is_empty();
            SequenceWork::Function(SequenceFunction::new(move |context| {
                let _here = helped.then(engine_thread::visit);
                loaded.call(context)
            }))
        }
    };
    Ok(SequenceStep {
        work,
        operands: step.operands.iter().map(|operand| sequence_operand(segment, operand)).collect(),
    })
}

/// A function that was bound to code.
fn load_function(
    compiled: &Compiled,
    function: &StepFunction,
    time: Option<CallTime>,
) -> Result<LoadedFunction, Error> {
    let program = || compiled.program().name.clone();
    let no_code = || ProgramError::NoCode { program: program(), function: function.name().to_owned() };
    let code = function.code().ok_or_else(no_code)?.clone();
    Ok(LoadedFunction { name: function.name().into(), code, checks_finite: compiled.checks_finite(), time })
}

/// An operand, with offsets relative to the part of its buffer that the segment uses.
fn sequence_operand(segment: &Segment, operand: &Located) -> SequenceOperand {
    let Located { dtype, access, .. } = *operand;
    let (memory, layout) = match operand.storage {
        Storage::Scratch(piece) => (SequenceMemory::Scratch(piece), operand.layout),
        Storage::Buffer { index: buffer, offset } => {
            let place = segment.uses.binary_search_by_key(&buffer, |segment_use| segment_use.buffer);
            let index = place.unwrap_or_else(|_| unreachable!("a segment lists what its steps use, by buffer"));
            // A value begins either in an arena, which a segment uses whole, or where its own buffer begins.
            let skipped = segment.uses[index].bytes.start / dtype.size();
            let layout = if skipped == 0 { operand.layout } else { moved(&operand.layout, skipped) };
            (SequenceMemory::Buffer { index, offset }, layout)
        }
    };
    SequenceOperand { memory, dtype, layout, access }
}

/// The layout, counted from an element `skipped` elements further on.
fn moved(layout: &Layout, skipped: usize) -> Layout {
    let offset = layout.offset().saturating_sub(skipped);
    Layout::with_strides(*layout.shape(), layout.strides(), offset)
        .unwrap_or_else(|_| unreachable!("a smaller offset is as valid as a larger one"))
}

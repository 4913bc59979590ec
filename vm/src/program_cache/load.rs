//! Finds the kernels of a compiled program, and runs its segments.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{
    self as ep, DeviceId, DeviceKind, FnContext, FnError, GraphOwner, InlineFn, Layout, Operation, ProgramStep,
    RestOfSegment, SegmentOptions, SegmentRun, SequenceBranch, SequenceBuffer, SequenceError, SequenceFlag,
    SequenceFunction, SequenceGroup, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork, Unfinished,
};
use streamvm_instructions::{Cause, Error, ProgramError, Role};
use streamvm_program::{
    BufferRole, Compiled, CompiledStep, FusedBy, FusedSteps, Located, OtherRole, Segment, SegmentBranch, SegmentUse,
    StepFunction, Storage, ValueId, Work,
};
use streamvm_stream::StreamType;

use crate::dispatch::function_outcome::FunctionOutcome;
use crate::execute::environment::Environment;
use crate::execute::run::text_of;
use crate::program_cache::function::{CallTime, LoadedFunction, not_finite};
use crate::program_cache::loaded::{ForSizes, LoadedProgram, LoadedSegment};
use crate::program_cache::only_kernel::OnlyKernel;
use crate::program_cache::other_parts;

impl LoadedProgram {
    /// Finds the kernels of a compiled program.
    ///
    /// # Errors
    /// The engine has no such device; an op has no kernel for a dtype.
    pub(crate) fn new(env: &Environment, compiled: Compiled) -> Result<LoadedProgram, Error> {
        LoadedProgram::of(env, compiled, &[])
    }

    /// The program for these sizes, of this one with bounded sizes; `all` are all such programs.
    ///
    /// # Errors
    /// Those of [`Compiled::at`] and [`new`](LoadedProgram::new).
    pub(crate) fn at(&self, env: &Environment, sizes: &[usize], all: &ForSizes) -> Result<LoadedProgram, Error> {
        let number = all.made.fetch_add(1, Ordering::Relaxed);
        let graphs = all.graphs.iter().map(|sequence| GraphOwner { sequence: sequence.clone(), sizes: number });
        let loaded = LoadedProgram::of(env, self.compiled.at(sizes)?, &graphs.collect::<Vec<_>>())?;
        Ok(LoadedProgram { next_run: self.next_run.clone(), ..loaded })
    }

    /// `graphs` has for each segment the owner of its graphs; none, if each segment owns its own.
    fn of(env: &Environment, compiled: Compiled, graphs: &[GraphOwner]) -> Result<LoadedProgram, Error> {
        for device in compiled.devices() {
            env.devices.get(device)?;
        }
        let segments =
            compiled.segments().iter().enumerate().map(|(number, segment)| {
                load(env, &compiled, segment, graphs.get(number).cloned().unwrap_or_default())
            });
        let segments = segments.collect::<Result<_, _>>()?;
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
        let (parts, sized, next_run) = (OnceLock::new(), OnceLock::new(), Arc::new(AtomicU64::new(0)));
        Ok(LoadedProgram { parts, sized, compiled, segments, only_kernel, fetches, draws, next_run })
    }

    /// Executes a segment; the rest of a run that pauses is left in `context`. An error names the step, and the source line that recorded it.
    pub(crate) fn call(
        self: &Arc<Self>,
        segment: usize,
        run: &mut SegmentRun,
        context: &mut FnContext<'_>,
    ) -> Result<(), FnError> {
        let prepared = match &self.segments[segment] {
            LoadedSegment::Prepared(prepared) => prepared,
            LoadedSegment::Function(function) => {
                if self.compiled.segments()[segment].stream.stream_type == StreamType::Collective {
                    return self.start_operation(segment, function, context);
                }
                return function.call(context).map_err(|error| self.failed_step(segment, 0, error));
            }
            LoadedSegment::Transfer => unreachable!("a transfer is submitted as a copy"),
            LoadedSegment::Touch | LoadedSegment::SectionMark => {
                unreachable!("touches, and the begins and ends of sections, are instructions without code")
            }
        };
        // Code that somebody has taken out of a list, and that an instruction of another kind calls.
        let Some(call) = &mut context.segment else {
            return Err("the steps of a program run as a run of it alone".into());
        };
        if let Some(step) = call.execute(&**prepared, run).map_err(|error| self.failed(segment, error))? {
            let (inner, mut run) = (self.clone(), SegmentRun { position: run.position.take(), ..*run });
            let function = InlineFn::new(move |context: &mut FnContext<'_>| inner.call(segment, &mut run, context));
            *call.rest = Some(RestOfSegment { step, function });
        }
        Ok(())
    }

    /// Calls a function that may start an operation, whose error then names the step.
    fn start_operation(
        self: &Arc<Self>,
        segment: usize,
        function: &LoadedFunction,
        context: &mut FnContext<'_>,
    ) -> Result<(), FnError> {
        let begin = function.time.as_ref().map(|_| Instant::now());
        let called = function.start(context).map_err(|error| self.failed_step(segment, 0, error))?;
        let Some(Unfinished(operation)) = called else {
            function.note_time(begin);
            return Ok(());
        };
        let (program, name) = (self.clone(), function.name.clone());
        Err(Box::new(Unfinished(Box::new(StepOperation { operation, program, segment, name, begin }))))
    }

    /// The failure of a step of a segment, with the text of its error.
    #[cold]
    fn failed_step(&self, segment: usize, step: usize, error: String) -> FnError {
        let step = self.step_of(segment, step);
        FnError::from(FunctionOutcome::Failed(Cause::Step { step, error }))
    }

    fn step_of(&self, segment: usize, step: usize) -> ProgramStep {
        let first = self.compiled.segments()[segment].steps.start;
        self.compiled.step(first + step).named()
    }

    #[cold]
    fn failed(&self, segment: usize, error: SequenceError) -> FnError {
        let at_step = |step: usize, error: String| self.failed_step(segment, step, error);
        let name = |step: usize| self.step_of(segment, step).name;
        match error {
            // Keep this cause: the engine recognises a lost device by it.
            SequenceError::Step { error: error @ streamvm_ep::Error::DeviceLost { .. }, .. } => {
                FnError::from(FunctionOutcome::Failed(Cause::Device(error)))
            }
            SequenceError::Refused(error) => FnError::from(FunctionOutcome::Failed(Cause::Device(error))),
            SequenceError::Step { step, error } => at_step(step, error.to_string()),
            SequenceError::Function { step, error } => at_step(step, error),
            SequenceError::NotFinite { step, index, value } => {
                at_step(step, not_finite(&format!("the output of {}", name(step)), &index, value))
            }
            SequenceError::Rounds { step, rounds } => at_step(
                step,
                format!(
                    "the condition of this {} is still true after {rounds} rounds of all loops, the most that a run may make; if it needs \
                     more, compile the program with more `most_rounds`",
                    name(step)
                ),
            ),
            SequenceError::LoopTime { step, most, rounds } => at_step(
                step,
                format!(
                    "the condition of this {} is still true after {most:?} and {rounds} rounds of all loops, the longest that they may take; \
                     if they need longer, compile the program with a larger `most_loop_time`",
                    name(step)
                ),
            ),
            SequenceError::Stopped { step } => at_step(
                step,
                format!(
                    "the engine was shut down, and its limit is over: this {} was stopped while its condition was true",
                    name(step)
                ),
            ),
            other => other.into(),
        }
    }
}

/// An operation that a step has started.
struct StepOperation {
    operation: Box<dyn Operation>,
    program: Arc<LoadedProgram>,
    segment: usize,
    name: Box<str>,
    /// When the function was called, if runs are timed.
    begin: Option<Instant>,
}

impl StepOperation {
    #[cold]
    fn failed(&self, error: FnError) -> FnError {
        match error.downcast::<ep::Error>() {
            // The engine looks for a lost device.
            Ok(error) if matches!(*error, ep::Error::DeviceLost { .. }) => error,
            Ok(error) => self.program.failed_step(self.segment, 0, format!("{}: {error}", self.name)),
            Err(error) => {
                let text = format!("{}: {}", self.name, text_of(error));
                self.program.failed_step(self.segment, 0, text)
            }
        }
    }
}

impl Operation for StepOperation {
    fn poll(&mut self) -> Result<bool, FnError> {
        let is_over = self.operation.poll().map_err(|error| self.failed(error))?;
        if is_over && let LoadedSegment::Function(function) = &self.program.segments[self.segment] {
            function.note_time(self.begin.take());
        }
        Ok(is_over)
    }

    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        self.operation.look(has_passed).map_err(|error| self.failed(error))
    }
}

/// A segment with the kernels that run it.
fn load(env: &Environment, compiled: &Compiled, segment: &Segment, graphs: GraphOwner) -> Result<LoadedSegment, Error> {
    if segment.is_transfer() {
        return Ok(LoadedSegment::Transfer);
    }
    if segment.is_section_mark() {
        return Ok(LoadedSegment::SectionMark);
    }
    if compiled.is_touch(segment) {
        return Ok(LoadedSegment::Touch);
    }
    if let Some(function) = compiled.function_of(segment) {
        // An operation of a device is over for the host once its commands are queued.
        let time = (compiled.times_steps() && function.role() == Role::Function).then(CallTime::default);
        return Ok(LoadedSegment::Function(load_function(compiled, function, time)?));
    }
    let device = env.devices.get(segment.stream.device)?;
    let (kind, loaded) = (segment.stream.device.kind, loaded_steps(env, compiled, segment)?);
    let others = other_parts::other_steps(env, compiled, segment, &loaded)?;
    let branches = branches_of(env, compiled, segment);
    let groups = groups(compiled, segment.steps.clone(), |steps| {
        let next = segment.others.get(segment.others.partition_point(|part| part.steps.end <= steps.start));
        next.is_none_or(|part| !part.steps.contains(&steps.start))
    });
    let prepared = device.prepare(ep::Segment {
        buffers: buffers(compiled, segment),
        steps: loaded,
        groups,
        branches,
        flag: flag(compiled, segment),
        others,
        options: SegmentOptions {
            smallest_graph: compiled.captures().then(|| compiled.smallest_graph()),
            graphs,
            ..options(env, compiled)
        },
    });
    // Nothing calls a run on the host again that has paused.
    if prepared.as_ref().is_ok_and(|prepared| prepared.pauses()) && kind.is_run_by_host() {
        return Err(would_pause(compiled, segment.stream.device));
    }
    prepared.map(LoadedSegment::Prepared).map_err(|error| not_loaded(compiled, segment.steps.start, &error))
}

/// The error of steps whose run would pause on a device that runs commands within their calls.
pub(super) fn would_pause(compiled: &Compiled, device: DeviceId) -> Error {
    let kind = device.kind;
    let what = format!("a run on {device} would pause, and {kind} devices run their commands within the call");
    ProgramError::NotCompiled { program: compiled.program().name.clone(), step: None, what }.into()
}

/// The error of a device that does not prepare steps, which are those from position `first` on.
pub(super) fn not_loaded(compiled: &Compiled, first: usize, error: &SequenceError) -> Error {
    let number = match error {
        SequenceError::Operands { step, .. }
        | SequenceError::PastBuffer { step, .. }
        | SequenceError::Group { step, .. }
        | SequenceError::Branches { step, .. }
        | SequenceError::Blocks { step, .. } => Some(first + step),
        _ => None,
    };
    let step = number.filter(|number| *number < compiled.step_count()).map(|number| compiled.step(number).named());
    let what = match step {
        Some(_) => format!("cannot be loaded; in the numbers of its segment: {error}"),
        None => error.to_string(),
    };
    ProgramError::NotCompiled { program: compiled.program().name.clone(), step, what }.into()
}

/// The memory of a segment.
pub(super) fn buffers(compiled: &Compiled, segment: &Segment) -> Vec<SequenceBuffer> {
    let buffer = |segment_use: &SegmentUse| match (&segment_use.view, compiled.value_of(segment_use.buffer)) {
        (Some(view), Some(value)) => {
            SequenceBuffer::View { layout: *view, element: compiled.program().value(value).dtype.size() }
        }
        _ => SequenceBuffer::Bytes(segment_use.bytes.len()),
    };
    segment.uses.iter().map(buffer).collect()
}

/// The steps of a segment with the kernels that run them.
fn loaded_steps(
    env: &Environment,
    compiled: &Compiled,
    segment: &Segment,
) -> Result<Vec<(SequenceStep, ProgramStep)>, Error> {
    // For each block around a step whether it is a loop.
    let mut blocks: SmallVec<[bool; 8]> = SmallVec::new();
    let mut others = segment.others.iter().filter(|part| part.role == OtherRole::Run).peekable();
    let of_step = |(position, step): (usize, CompiledStep<'_>)| {
        match step.work {
            Work::If | Work::While => blocks.push(matches!(step.work, Work::While)),
            Work::End => _ = blocks.pop(),
            _ => {}
        }
        while others.next_if(|part| part.steps.end <= position).is_some() {}
        let device = match others.peek() {
            Some(part) if part.steps.contains(&position) => part.device,
            _ => segment.stream.device,
        };
        Ok((sequence_step(env, device.kind, segment, (&step, blocks.contains(&true)), compiled)?, step.named()))
    };
    segment.steps.clone().zip(compiled.steps_of(segment.steps.clone())).map(of_step).collect()
}

/// How steps are to run, apart from graphs.
pub(super) fn options(env: &Environment, compiled: &Compiled) -> SegmentOptions {
    SegmentOptions {
        checks_finite: compiled.checks_finite(),
        times_steps: compiled.times_steps(),
        notes_steps: env.timeline.is_some(),
        stops: env.stops_loops.clone(),
        ..SegmentOptions::default()
    }
}

/// The groups among these steps that `is_of` accepts, in the numbers of the steps.
pub(super) fn groups(
    compiled: &Compiled,
    steps: Range<usize>,
    is_of: impl Fn(&Range<usize>) -> bool,
) -> Vec<SequenceGroup> {
    // Groups are in the order of their steps, each within one segment.
    let first = compiled.fused().partition_point(|group| group.steps.start < steps.start);
    let groups = compiled.fused()[first..].iter().take_while(|group| group.steps.end <= steps.end);
    groups.filter(|group| is_of(&group.steps)).map(|group| loaded_group(compiled, group, steps.start)).collect()
}

/// The buffer to which conditions of blocks and outputs are copied for the host.
#[allow(unsafe_code, reason = "says that the host may read the flag")]
pub(super) fn flag(compiled: &Compiled, segment: &Segment) -> Option<SequenceFlag> {
    // SAFETY: the compiler gives a flag page-locked memory of the host. The engine calls the rest of a segment once the device has passed what was queued
    // before: see `RestOfSegment`.
    place_of_flag(compiled, segment).map(|place| unsafe { SequenceFlag::new(place) })
}

/// The index of that buffer.
pub(super) fn place_of_flag(compiled: &Compiled, segment: &Segment) -> Option<usize> {
    segment.uses.iter().position(|it| matches!(compiled.buffers()[it.buffer].role, BufferRole::Flag(_)))
}

/// The branches of a segment, in the numbers of its steps. Where callers run all work, functions are called in their threads, in the order of the steps.
fn branches_of(env: &Environment, compiled: &Compiled, segment: &Segment) -> Vec<SequenceBranch> {
    let is_function = |step: CompiledStep<'_>| matches!(step.work, Work::Function(_));
    if !env.threaded && compiled.steps_of(segment.steps.clone()).any(is_function) {
        return Vec::new();
    }
    let first = segment.steps.start;
    let branch = |branch: &SegmentBranch| SequenceBranch {
        steps: branch.steps.start - first..branch.steps.end - first,
        lane: branch.lane,
        after: branch.after.clone(),
    };
    segment.branches.iter().map(branch).collect()
}

/// A group of steps, counted from the first step of its segment, which is step `first` of the program.
fn loaded_group(compiled: &Compiled, group: &FusedSteps, first: usize) -> SequenceGroup {
    let is_unstored =
        |step: &CompiledStep<'_>| step.operands.last().is_some_and(|output| group.is_unstored(output.value));
    let unstored = group.steps.clone().filter(|&step| is_unstored(&compiled.step(step)));
    let block = match group.by {
        FusedBy::Blocks(block) => block,
        FusedBy::Kernel { .. } => 0,
    };
    SequenceGroup {
        steps: group.steps.start - first..group.steps.end - first,
        block,
        unstored: unstored.map(|step| step - first).collect(),
    }
}

/// A step of the compiler with the kernel that runs it; `in_loop` tells whether it lies in a loop.
fn sequence_step(
    env: &Environment,
    kind: DeviceKind,
    segment: &Segment,
    (step, in_loop): (&CompiledStep<'_>, bool),
    compiled: &Compiled,
) -> Result<SequenceStep, Error> {
    let work = match step.work {
        Work::Call(op, params) => {
            let dtype = step.operands[op.key_input()].dtype;
            let kernel = env.kernels.get(*op, kind, dtype)?;
            match step.advance {
                0 => SequenceWork::Kernel(kernel, *params),
                advance => SequenceWork::Draw { kernel, params: *params, advance, in_loop },
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
        Work::Touch(_) | Work::SectionBegin(_) | Work::SectionEnd(_) => {
            unreachable!("it is a segment by itself, which has no sequence")
        }
        Work::Function(function) => {
            // The sequence takes the times.
            let loaded = load_function(compiled, function, None)?;
            SequenceWork::Function(SequenceFunction::new(move |context| loaded.call(context)))
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
    Ok(LoadedFunction {
        name: function.name().into(),
        role: function.role(),
        code,
        checks_finite: compiled.checks_finite(),
        time,
    })
}

/// An operand, with offsets relative to the part of its buffer that the segment uses.
fn sequence_operand(segment: &Segment, operand: &Located<'_>) -> SequenceOperand {
    let Located { dtype, access, .. } = *operand;
    let (memory, layout) = match operand.storage {
        Storage::Scratch(piece) => (SequenceMemory::Scratch(piece), *operand.layout),
        Storage::Buffer { index: buffer, offset } => {
            let place = segment.uses.binary_search_by_key(&buffer, |segment_use| segment_use.buffer);
            let index = place.unwrap_or_else(|_| unreachable!("a segment lists what its steps use, by buffer"));
            // A value begins either in an arena, which a segment uses whole, or where its own buffer begins.
            let skipped = segment.uses[index].bytes.start / dtype.size();
            let layout = if skipped == 0 { *operand.layout } else { moved(operand.layout, skipped) };
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

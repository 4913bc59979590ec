//! Finds the kernels of a compiled program, and runs its segments.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use hashbrown::HashMap;
use streamvm_ep::{
    CommandSequence, CpuSequence, DeviceKind, FnContext, FnError, Layout, SequenceError, SequenceGroup, SequenceMemory,
    SequenceOperand, SequenceStep, SequenceWork, StepLabel,
};
use streamvm_instructions::{Cause, Error, ProgramError, StepFailure};
use streamvm_program::{BufferRole, Compiled, CompiledStep, Located, Segment, Storage, ValueId, Work};

use crate::dispatch::function_outcome::FunctionOutcome;
use crate::execute::environment::Environment;
use crate::program_cache::loaded::{LoadedProgram, LoadedSegment};

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
        Ok(LoadedProgram { compiled, segments, fetches, draws, next_run: AtomicU64::new(0) })
    }

    /// Runs or queues the steps of a segment in the run of this number. An error names the step, and the source line that recorded it.
    pub(crate) fn call(&self, segment: usize, run: u64, context: &mut FnContext<'_>) -> Result<(), FnError> {
        let ran = match &self.segments[segment] {
            LoadedSegment::Cpu(sequence) => sequence.run(context, run),
            LoadedSegment::Commands(sequence) => sequence.run(context, run),
            LoadedSegment::Transfer => unreachable!("a transfer is submitted as a copy"),
        };
        ran.map_err(|error| self.failed(segment, error))
    }

    #[cold]
    fn failed(&self, segment: usize, error: SequenceError) -> FnError {
        let first = self.compiled.segments()[segment].steps.start;
        let at_step = |step: usize, error: String| {
            let CompiledStep { work, number, location, .. } = &self.compiled.steps()[first + step];
            let failed = StepFailure { step: *number, what: work.name(), location, error };
            FnError::from(FunctionOutcome::Failed(Cause::Step(Box::new(failed))))
        };
        match error {
            // The engine looks for this cause: the device runs nothing any more.
            SequenceError::Step { error: error @ streamvm_ep::Error::DeviceLost { .. }, .. } => {
                FnError::from(FunctionOutcome::Failed(Cause::Device(error)))
            }
            SequenceError::Step { step, error } => at_step(step, error.to_string()),
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
            other => other.into(),
        }
    }
}

/// A segment with the kernels that run it.
fn load(env: &Environment, compiled: &Compiled, segment: &Segment) -> Result<LoadedSegment, Error> {
    if segment.is_transfer() {
        return Ok(LoadedSegment::Transfer);
    }
    let kind = segment.stream.device.kind;
    let sizes: Vec<usize> = segment.uses.iter().map(|segment_use| segment_use.bytes.len()).collect();
    let steps = compiled.steps()[segment.steps.clone()].iter();
    let load = |step: &CompiledStep| sequence_step(env, kind, segment, step, compiled.most_rounds());
    let loaded = if kind == DeviceKind::Cpu {
        let steps: Vec<SequenceStep> = steps.map(load).collect::<Result<_, Error>>()?;
        // Groups are in the order of their steps, each within one segment.
        let first = compiled.fused().partition_point(|group| group.steps.start < segment.steps.start);
        let groups = compiled.fused()[first..].iter().take_while(|group| group.steps.end <= segment.steps.end);
        let of_segment = |group: &Range<usize>| group.start - segment.steps.start..group.end - segment.steps.start;
        let groups: Vec<SequenceGroup> =
            groups.map(|group| SequenceGroup { steps: of_segment(&group.steps), block: group.block }).collect();
        let sequence = CpuSequence::new(&sizes, steps, &groups);
        sequence.map(|sequence| {
            let sequence = sequence.checking_finite(compiled.checks_finite());
            LoadedSegment::Cpu(if compiled.times_steps() { sequence.timing() } else { sequence })
        })
    } else {
        let label =
            |step: &CompiledStep| StepLabel { step: step.number, what: step.work.name(), location: step.location };
        let steps = steps.map(|step| Ok((load(step)?, label(step)))).collect::<Result<_, Error>>()?;
        let sequence = CommandSequence::new(kind, &sizes, steps);
        sequence
            .map(|sequence| LoadedSegment::Commands(if compiled.captures() { sequence } else { sequence.one_by_one() }))
    };
    loaded.map_err(|error| {
        let (program, what) = (compiled.program().name.clone(), error.to_string());
        ProgramError::NotCompiled { program, what }.into()
    })
}

/// A step of the compiler with the kernel that runs it.
fn sequence_step(
    env: &Environment,
    kind: DeviceKind,
    segment: &Segment,
    step: &CompiledStep,
    most_rounds: u64,
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
        Work::While => SequenceWork::While { most_rounds },
        Work::End => SequenceWork::End,
    };
    Ok(SequenceStep {
        work,
        operands: step.operands.iter().map(|operand| sequence_operand(segment, operand)).collect(),
    })
}

/// An operand, counted from the bytes of its buffer that the segment uses.
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

//! Steps that one instruction queues on the stream of a device which runs commands later, one command for each step.
//!
//! As for a [`CpuSequence`](crate::CpuSequence), the operands of the instruction are buffers, and [`CommandSequence::new`] checks all steps
//! once.
//!
//! Neighbouring steps that are the same commands in each run over the same buffers are announced to the stream together
//! ([`Stream::begin_graph`](crate::Stream::begin_graph)), which may launch them by one call. Two kinds of step are queued one by one: a
//! kernel that refuses elements, because it reports them for each launch, and a kernel that draws random numbers, because its parameters
//! differ in each run.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::call::commands::{CommandCall, Commands};
use crate::call::fn_context::FnContext;
use crate::call::graph::{GraphKey, GraphStart};
use crate::call::kernel::KernelCall;
use crate::call::label::StepLabel;
use crate::call::operand::Operand;
use crate::names::device_id::DeviceKind;
use crate::sequence::buffers::{Buffers, located};
use crate::sequence::step::{MOST_OPERANDS, SequenceError, SequenceMemory, SequenceStep, SequenceWork, params_of_run};

/// Steps for one kind of device that were checked: every operand lies within its buffer.
#[derive(Debug)]
pub struct CommandSequence {
    buffers: Buffers,
    steps: Vec<Command>,
    /// All steps in order, divided into those that are announced together and those that are queued one by one.
    parts: Vec<Part>,
    /// Names this sequence to streams.
    identity: Arc<()>,
}

/// Neighbouring steps.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    steps: Range<usize>,
    /// Whether they are announced together.
    together: bool,
}

#[derive(Debug)]
struct Command {
    step: SequenceStep,
    label: StepLabel,
    /// For each operand its buffer.
    of_buffers: SmallVec<[usize; MOST_OPERANDS]>,
}

impl CommandSequence {
    /// Checks `steps` for devices of this kind, whose operands are views of buffers of `buffers` bytes each.
    ///
    /// # Errors
    /// [`SequenceError::Operands`] and [`SequenceError::PastBuffer`]; [`SequenceError::Blocks`] if a step begins or ends a block, because
    /// the value that decides about the block is not known yet when the steps are queued.
    pub fn new(
        device: DeviceKind,
        buffers: &[usize],
        steps: Vec<(SequenceStep, StepLabel)>,
    ) -> Result<CommandSequence, SequenceError> {
        let mut buffers = Buffers::new(buffers);
        let command = |(number, (step, label)): (usize, (SequenceStep, StepLabel))| {
            step.check_form(number, device)?;
            if matches!(
                step.work,
                SequenceWork::If | SequenceWork::Else | SequenceWork::While { .. } | SequenceWork::End
            ) {
                let what = "a device that runs commands later cannot run blocks: their conditions are not known when steps are queued";
                return Err(SequenceError::Blocks { step: number, what });
            }
            let mut of_buffers = SmallVec::new();
            for (place, operand) in step.operands.iter().enumerate() {
                let SequenceMemory::Buffer { index, .. } = operand.memory else {
                    let found = "scratch memory".to_owned();
                    return Err(SequenceError::Operands { step: number, expected: "operands in buffers", found });
                };
                buffers.add(number, place, operand)?;
                of_buffers.push(index);
            }
            Ok(Command { step, label, of_buffers })
        };
        let steps = steps.into_iter().enumerate().map(command).collect::<Result<Vec<Command>, _>>()?;
        let parts = parts(&steps);
        Ok(CommandSequence { buffers, steps, parts, identity: Arc::default() })
    }

    /// Queues each step by itself: no stream launches several by one call.
    #[must_use]
    pub fn one_by_one(mut self) -> CommandSequence {
        self.parts = vec![Part { steps: 0..self.steps.len(), together: false }];
        self
    }

    /// The bytes that the steps take on the heap.
    pub fn heap_bytes(&self) -> usize {
        let operands: usize = self.steps.iter().map(|command| size_of_val(command.step.operands.as_slice())).sum();
        let lists = size_of_val(self.steps.as_slice()) + size_of_val(self.parts.as_slice());
        operands + lists + self.buffers.heap_bytes()
    }

    /// Queues a command for each step on the stream of `context`, whose operands are the buffers in the same order. Does not wait for them.
    /// `run` is the number of the run, which decides about its random numbers.
    ///
    /// # Errors
    /// [`SequenceError::Buffers`], and nothing was queued: the context has no stream, the number of operands or the size of one differs, one
    /// is not contiguous, or one is written by a step and was declared as read. [`SequenceError::Step`] for the first step that the stream
    /// refuses: the steps before it were queued, and those after it were not.
    pub fn run(&self, context: &mut FnContext<'_>, run: u64) -> Result<(), SequenceError> {
        let Some(CommandCall { stream, operands: buffers }) = &mut context.commands else {
            return Err(SequenceError::Buffers("it was called without the stream of a device".to_owned()));
        };
        self.buffers.check(buffers)?;
        for Part { steps, together } in &self.parts {
            let failed = |error| SequenceError::Step { step: steps.start, error };
            if *together {
                let key = GraphKey { sequence: &self.identity, first: steps.start };
                match stream.begin_graph(key, buffers).map_err(failed)? {
                    GraphStart::Launched => continue,
                    GraphStart::Capturing => {
                        let captured = self.queue(steps, &mut **stream, buffers, run);
                        // If no graph is launched, the steps are queued one by one below; a step that fails returns its error
                        // there.
                        if stream.end_graph(captured.is_ok()).map_err(failed)? {
                            continue;
                        }
                    }
                    GraphStart::Queue => {}
                }
            }
            self.queue(steps, &mut **stream, buffers, run)?;
        }
        Ok(())
    }

    /// Queues a command for each of these steps.
    fn queue(
        &self,
        steps: &Range<usize>,
        stream: &mut dyn Commands,
        buffers: &[Operand],
        run: u64,
    ) -> Result<(), SequenceError> {
        let mut operands: [Operand; MOST_OPERANDS] = std::array::from_fn(|_| Operand::blank());
        for (number, Command { step, label, of_buffers }) in
            self.steps.iter().enumerate().take(steps.end).skip(steps.start)
        {
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
                (SequenceWork::Copy, [source, target]) => stream.copy(source, target),
                (SequenceWork::Fill(value), [target]) => stream.fill(target, *value),
                _ => unreachable!("`new` has counted the operands, and refuses blocks"),
            };
            queued.map_err(|error| SequenceError::Step { step: number, error })?;
        }
        Ok(())
    }
}

/// Divides the steps. A single step is queued by itself: a graph would save no call.
fn parts(steps: &[Command]) -> Vec<Part> {
    let mut parts = Vec::new();
    for group in steps.chunk_by(|one, next| is_same_in_each_run(one) == is_same_in_each_run(next)) {
        let begin = parts.last().map_or(0, |part: &Part| part.steps.end);
        let together = group.len() > 1 && is_same_in_each_run(&group[0]);
        parts.push(Part { steps: begin..begin + group.len(), together });
    }
    parts
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

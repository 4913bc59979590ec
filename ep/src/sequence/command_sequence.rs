//! Steps that one instruction queues on the stream of a device which runs commands later, one command for each step.
//!
//! As for a [`CpuSequence`](crate::CpuSequence), the operands of the instruction are buffers, and [`CommandSequence::new`] checks all steps
//! once.

use smallvec::SmallVec;

use crate::call::commands::CommandCall;
use crate::call::fn_context::FnContext;
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
        let steps = steps.into_iter().enumerate().map(command).collect::<Result<_, _>>()?;
        Ok(CommandSequence { buffers, steps })
    }

    /// The bytes that the steps take on the heap.
    pub fn heap_bytes(&self) -> usize {
        let operands: usize = self.steps.iter().map(|command| size_of_val(command.step.operands.as_slice())).sum();
        operands + size_of_val(self.steps.as_slice()) + self.buffers.heap_bytes()
    }

    /// Queues a command for each step on the stream of `context`, whose operands are the buffers in the same order. Does not wait for them.
    /// `run` is the number of the run, which decides about its random numbers.
    ///
    /// # Errors
    /// [`SequenceError::Buffers`], and nothing was queued: the context has no stream, the number of operands or the size of one differs, one
    /// is not contiguous, or one is written by a step and was declared as read. [`SequenceError::Step`] for the first step that the stream
    /// refuses: the steps before it were queued, and those behind it were not.
    pub fn run(&self, context: &mut FnContext<'_>, run: u64) -> Result<(), SequenceError> {
        let Some(CommandCall { stream, operands: buffers }) = &mut context.commands else {
            return Err(SequenceError::Buffers("it was called without the stream of a device".to_owned()));
        };
        self.buffers.check(buffers)?;
        let mut operands: [Operand; MOST_OPERANDS] = std::array::from_fn(|_| Operand::blank());
        for (number, Command { step, label, of_buffers }) in self.steps.iter().enumerate() {
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

#[cfg(test)]
#[path = "command_sequence_tests.rs"]
mod tests;

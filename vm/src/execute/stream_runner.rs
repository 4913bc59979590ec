//! The stream runner: runs tasks on a device stream, and keeps a reused buffer for the operands of the current task.

use streamvm_ep::{self as ep, CallError, FnContext, KernelCall, ProgramStep, RawCall, RestOfSegment, SegmentCall};

use crate::tasks::task::{Action, Computing, Task};
use crate::tasks::view::Operands;

/// A device stream with the operand buffer. Used by one thread at a time.
pub(crate) struct Runner {
    stream: Box<dyn ep::Stream>,
    operands: Operands,
    /// The block at which the last task paused.
    condition: Option<ProgramStep>,
}

impl Runner {
    /// A runner for tasks on `stream`.
    pub(crate) fn new(stream: Box<dyn ep::Stream>) -> Runner {
        Runner { stream, operands: Operands::default(), condition: None }
    }

    /// The block at which the last task paused, if the task has not queued all of its commands: it is to be run again. Returned once.
    #[inline]
    pub(crate) fn take_condition(&mut self) -> Option<ProgramStep> {
        self.condition.take()
    }

    /// The device stream.
    #[inline]
    pub(crate) fn stream(&mut self) -> &mut dyn ep::Stream {
        self.stream.as_mut()
    }

    /// Runs or launches the action of `task`, and leaves [`Action::Nothing`] in its place, or [`Action::Segment`] if its run has paused.
    ///
    /// # Errors
    /// The error of the device or of the function. The instruction has failed; later work of the stream still runs.
    #[inline]
    pub(crate) fn run(&mut self, task: &mut Task) -> Result<(), CallError> {
        let Runner { stream, operands, condition } = self;
        let stream = stream.as_mut();
        let operands = match task.views() {
            Some(views) => operands.of(views),
            None => &mut [],
        };
        match (std::mem::replace(&mut task.action, Action::Nothing), operands) {
            (Action::Nothing | Action::Mark | Action::Join, _) => Ok(()),
            (Action::Function, operands) => stream.call(&mut task.function, operands),
            (Action::Raw, operands) => {
                // Moved out of the task, so that it is dropped here even if the stream does not call it: the task may be in flight for
                // long.
                let mut function = std::mem::take(&mut task.function);
                let mut call = |raw: &RawCall<'_>| function.call(&mut FnContext::of_raw(raw));
                stream.call_raw(&mut call, operands)
            }
            (Action::Segment, operands) => {
                let (mut stream, mut rest) = (stream, None);
                let instruction = (task.point.stream.0, task.point.seq);
                let mut context =
                    FnContext::of_segment(SegmentCall::new(&mut stream, operands, instruction, &mut rest));
                task.function.call(&mut context).map_err(CallError::Function)?;
                if let Some(RestOfSegment { step, function }) = rest {
                    (task.action, task.function, *condition) = (Action::Segment, function, Some(step));
                }
                Ok(())
            }
            (Action::Kernel, operands) => {
                let Computing { kernel: Some(kernel), params, .. } = &task.computing else {
                    unreachable!("a kernel's task is given with the kernel: see State::fill")
                };
                let inputs = operands.len().saturating_sub(1);
                Ok(stream.launch(&mut KernelCall::new(*kernel, operands, inputs, params))?)
            }
            (Action::Copy, [source, target]) => Ok(stream.copy(source, target)?),
            (Action::Fill, [target]) => {
                let Some(value) = task.computing.value else {
                    unreachable!("a fill's task is given with the value: see State::fill")
                };
                Ok(stream.fill(target, value)?)
            }
            (Action::Copy | Action::Fill, operands) => {
                unreachable!("lists are checked: no copy or fill has {} operands", operands.len())
            }
        }
    }
}

//! What runs jobs: a stream of a device, with places for the operands of the job at hand.

use streamvm_ep::{self as ep, CallError, FnContext, KernelCall, Operand, RawCall};
use streamvm_stream::{StreamPolicy, Work};

use crate::job::{Computing, Job, Task};
use crate::view::Operands;

/// A stream, for one thread at a time.
pub(crate) struct Runner {
    stream: Box<dyn ep::Stream>,
    operands: Operands,
}

impl Runner {
    /// One that runs jobs on `stream`.
    pub(crate) fn new(stream: Box<dyn ep::Stream>) -> Runner {
        Runner { stream, operands: Operands::default() }
    }

    /// The stream.
    #[inline]
    pub(crate) fn stream(&mut self) -> &mut dyn ep::Stream {
        self.stream.as_mut()
    }

    /// Has `policy` run or launch the task of `job`, which has none from now on.
    #[inline]
    pub(crate) fn run(&mut self, job: &mut Job, policy: &dyn StreamPolicy) -> Result<(), CallError> {
        let Runner { stream, operands } = self;
        let operands = match job.views() {
            Some(views) => operands.of(views),
            None => &mut [],
        };
        policy.run(&mut Running { job, operands }, stream.as_mut())
    }
}

/// A job, and what it works on.
struct Running<'a> {
    job: &'a mut Job,
    operands: &'a mut [Operand],
}

impl Work for Running<'_> {
    fn run(&mut self, stream: &mut dyn ep::Stream) -> Result<(), CallError> {
        let Running { job, operands } = self;
        match (std::mem::replace(&mut job.task, Task::Nothing), &mut **operands) {
            (Task::Nothing | Task::Mark | Task::Join, _) => Ok(()),
            (Task::Function, operands) => stream.call(&mut job.function, operands),
            (Task::Raw, operands) => {
                // Taken out first: a stream that does not call it cannot drop it, and the job may be in flight for long.
                let mut function = std::mem::take(&mut job.function);
                let mut call = |raw: &RawCall<'_>| function.call(&mut FnContext::of_raw(raw));
                stream.call_raw(&mut call, operands)
            }
            (Task::Kernel, operands) => {
                let Computing { kernel: Some(kernel), params, .. } = &job.computing else {
                    unreachable!("a kernel's task is given with the kernel: see State::fill")
                };
                let inputs = operands.len().saturating_sub(1);
                Ok(stream.launch(&mut KernelCall { kernel: *kernel, operands, inputs, params })?)
            }
            (Task::Copy, [source, target]) => Ok(stream.copy(source, target)?),
            (Task::Fill, [target]) => {
                let Some(value) = job.computing.value else {
                    unreachable!("a fill's task is given with the value: see State::fill")
                };
                Ok(stream.fill(target, value)?)
            }
            (Task::Copy | Task::Fill, operands) => {
                unreachable!("lists are checked: no copy or fill has {} operands", operands.len())
            }
        }
    }
}

//! Jobs: instructions as the engine runs them.
//!
//! A job lives in a slot. It is filled by the submitter and belongs from then on to whoever holds the slot. Operands are
//! raw views, waits are numbers, a caller's code is stored inline: nothing in a job is shared with another thread. The
//! vectors keep their capacity from life to life.

use std::borrow::Cow;
use std::panic::Location;

use smallvec::SmallVec;
use streamvm_ep::{self as ep, FnContext, InlineFn, Kernel, KernelCall, Operand, Params, Scalar};
use streamvm_stream::{Point, RunError, StreamId, Work};

/// The device part of a job.
pub(crate) enum Task {
    /// Order alone.
    Nothing,
    /// A kernel over the operands: inputs, then the output.
    Kernel(Kernel, Params),
    /// The first operand into the second.
    Copy,
    /// A value into the operand.
    Fill(Scalar),
    /// A caller's code over the operands.
    Function(InlineFn),
}

/// One instruction on its way from submission to completion.
pub(crate) struct Job {
    /// Its number.
    pub(crate) point: Point,
    /// What runs, for errors.
    pub(crate) what: Cow<'static, str>,
    /// Where the caller issued it.
    pub(crate) site: &'static Location<'static>,
    /// Points that the thread context waits for.
    pub(crate) device_waits: SmallVec<[Point; 2]>,
    /// Points that the scheduler waits for.
    pub(crate) host_waits: SmallVec<[Point; 2]>,
    /// The points that wrote what it reads.
    pub(crate) reads: SmallVec<[Point; 4]>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) task: Task,
    /// Bytes that it keeps until it has passed: its new outputs and boxed captures.
    pub(crate) bytes: u64,
}

impl Job {
    /// A job that does nothing, to be filled.
    pub(crate) fn empty() -> Job {
        Job {
            point: Point::new(StreamId(0), 0),
            what: Cow::Borrowed(""),
            site: Location::caller(),
            device_waits: SmallVec::new(),
            host_waits: SmallVec::new(),
            reads: SmallVec::new(),
            operands: Vec::new(),
            task: Task::Nothing,
            bytes: 0,
        }
    }

    /// Drops what the job holds and keeps the capacity. User code (the captures' drops) may run, and panic.
    pub(crate) fn clear(&mut self) {
        self.operands.clear();
        self.device_waits.clear();
        self.host_waits.clear();
        self.reads.clear();
        self.what = Cow::Borrowed("");
        self.bytes = 0;
        // Last: whatever a capture's drop does, the rest is clean.
        self.task = Task::Nothing;
    }
}

impl Work for Job {
    fn run(&mut self, stream: &mut dyn ep::Stream) -> Result<(), RunError> {
        match std::mem::replace(&mut self.task, Task::Nothing) {
            Task::Nothing => Ok(()),
            Task::Kernel(kernel, params) => {
                let inputs = self.operands.len().saturating_sub(1);
                let operands = &mut self.operands;
                Ok(stream.launch(&mut KernelCall { kernel, operands, inputs, params: &params })?)
            }
            Task::Copy => match self.operands.as_mut_slice() {
                [source, target] => Ok(stream.copy(source, target)?),
                _ => Ok(()),
            },
            Task::Fill(value) => match self.operands.as_mut_slice() {
                [target] => Ok(stream.fill(target, value)?),
                _ => Ok(()),
            },
            Task::Function(function) => {
                let mut context = FnContext::new(&mut self.operands)?;
                function.call(&mut context).map_err(RunError::Function)
            }
        }
    }
}

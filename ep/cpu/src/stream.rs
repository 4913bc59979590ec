//! The CPU stream: runs each command in the calling thread, before the call returns. Threads of [`streamvm_kernels`] help with large kernels.
//!
//! So a record has passed as soon as it is made, a wait for a recorded event never blocks, and `synchronize` has nothing to wait for.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use streamvm_ep::{
    CallError, DeviceId, DeviceKind, Error, EventId, EventPool, FnContext, InlineFn, KernelCall, OpStates, Operand,
    Prepared, ProgramStep, Scalar, SegmentRun, SequenceError, StepNote, Stream,
};
use streamvm_kernels::{copy, fill, set_threads};

use crate::sequence::CpuSequence;

/// A stream of a [`CpuDevice`](crate::CpuDevice).
#[derive(Debug)]
pub(crate) struct CpuStream {
    device: DeviceId,
    /// The most threads of one kernel, the calling one included.
    threads: usize,
    events: Arc<EventPool>,
    step_note: Arc<StepNote>,
    states: Arc<OpStates>,
}

impl CpuStream {
    pub(crate) fn new(device: DeviceId, threads: usize, events: Arc<EventPool>, states: Arc<OpStates>) -> CpuStream {
        CpuStream { device, threads, events, step_note: Arc::default(), states }
    }
}

// SAFETY: each command runs within its call, by kernels and functions that take operands of any lifetime and check their accesses.
unsafe impl Stream for CpuStream {
    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        if call.kernel.device != DeviceKind::CPU {
            return Err(Error::WrongDevice { kernel: call.kernel.device, device: self.device });
        }
        call.mark_overlapping_shared()?;
        set_threads(self.threads);
        call.run(Some(&self.states))?;
        Ok(())
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        set_threads(self.threads);
        copy(source, target)?;
        // The target may be write-combined memory, and ordinary stores of the same core are not ordered after writes to it. The fence
        // makes these writes visible before any later store lets another thread or a device know of the copy.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        set_threads(self.threads);
        fill(target, value)
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        // For the kernels of a sequence that the function runs.
        set_threads(self.threads);
        function.call(&mut FnContext::new(operands)?).map_err(CallError::Function)
    }

    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        let sequence = CpuSequence::of(prepared)?;
        set_threads(self.threads);
        let mut context = FnContext::new(operands).map_err(SequenceError::Refused)?;
        sequence.run_noting(&mut context, run, Some(&self.step_note))?;
        Ok(None)
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        Some(self.step_note.clone())
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.events.record(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        if self.events.is_recorded(event)? {
            Ok(())
        } else {
            Err(Error::EventNotRecorded { event, device: self.device })
        }
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;

//! The CPU stream: runs each command in the calling thread, before it returns.
//!
//! So a record has passed as soon as it is made, a wait for a recorded event never blocks, and
//! `synchronize` has nothing to wait for.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::closure::InlineFn;
use crate::cpu::kernels;
use crate::device::{DeviceId, DeviceKind};
use crate::error::{CallError, Error};
use crate::event::{EventId, EventPool};
use crate::fn_context::FnContext;
use crate::kernel::KernelCall;
use crate::label::Label;
use crate::operand::Operand;
use crate::raw::RawFn;
use crate::scalar::Scalar;
use crate::stream::Stream;

/// A stream of a [`CpuDevice`](crate::CpuDevice).
#[derive(Debug)]
pub(crate) struct CpuStream {
    device: DeviceId,
    events: Arc<EventPool>,
}

impl CpuStream {
    pub(crate) fn new(device: DeviceId, events: Arc<EventPool>) -> CpuStream {
        CpuStream { device, events }
    }
}

impl Stream for CpuStream {
    fn begin(&mut self, _: &Label) {}

    fn launch(&mut self, call: &mut KernelCall<'_>) -> Result<(), Error> {
        if call.kernel.device != DeviceKind::Cpu {
            return Err(Error::WrongDevice { kernel: call.kernel.device, device: self.device });
        }
        call.share_overlapping()?;
        (call.kernel.run)(call)?;
        Ok(())
    }

    fn copy(&mut self, source: &Operand, target: &mut Operand) -> Result<(), Error> {
        kernels::copy(source, target)?;
        // The target may be write-combined memory, whose writes no ordinary store of the same core waits for: they are there
        // before anybody hears that the copy is over, and lets a device read it.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn fill(&mut self, target: &mut Operand, value: Scalar) -> Result<(), Error> {
        kernels::fill(target, value)
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand]) -> Result<(), CallError> {
        let mut context = FnContext::new(operands)?;
        function.call(&mut context).map_err(CallError::Function)
    }

    fn call_raw(&mut self, _: &mut RawFn<'_>, _: &mut [Operand]) -> Result<(), CallError> {
        Err(Error::NoRawStream { device: self.device }.into())
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

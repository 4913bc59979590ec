//! A simulated stream: checks each command, reports it to the detector, and queues it.

use std::sync::Arc;

use streamvm_ep::backend::check::{check_copy, check_fill};
use streamvm_ep::{
    ActorId, CallError, DeviceId, DeviceKind, Error, EventId, FnContext, InlineFn, KernelCall, Label, MemoryKind,
    Operand, ProgramStep, RawFn, Scalar, StepNote, Stream,
};

use crate::races::{Finding, FindingKind, Moment, Reach};
use crate::sim::accesses::{Labels, touches};
use crate::sim::machine::SimMachine;
use crate::sim::queue::{Command, Work};

/// A stream of a simulated device. Commands that are queued when it is dropped still run.
#[derive(Debug)]
pub(super) struct SimStream {
    device: u32,
    machine: Arc<SimMachine>,
    id: u64,
    name: Arc<str>,
    actor: ActorId,
    labels: Labels,
    step_note: Arc<StepNote>,
}

impl SimStream {
    pub(super) fn new(device: u32, machine: Arc<SimMachine>) -> SimStream {
        let id = machine.open(device);
        let name: Arc<str> = format!("stream {id} of {}", DeviceId::sim(device)).into();
        let actor = machine.detector.actor(&name);
        SimStream { device, machine, id, name, actor, labels: Labels::new(id as u32), step_note: Arc::default() }
    }

    fn device(&self) -> DeviceId {
        DeviceId::sim(self.device)
    }

    /// Orders the next command after everything that the calling thread has done and observed.
    fn after_this_thread(&self) {
        let detector = &self.machine.detector;
        let given = detector.release(detector.this_thread());
        detector.acquire(self.actor, &given);
    }

    /// Reports to the detector what a command touches; returns the command, to be queued.
    fn command_for<'a>(&self, label: Label, operands: impl Iterator<Item = &'a Operand<'a>>) -> Command {
        self.after_this_thread();
        let touches = touches(&label, operands);
        let already_freed = self.machine.detector.check_access(self.actor, &label, &touches) == Reach::Gone;
        let runs = touches.iter().flat_map(|touch| touch.runs().iter().cloned()).collect();
        let first = |run: &std::ops::Range<usize>| self.machine.heap.containing(run.start);
        let blocks = touches.iter().filter_map(|touch| touch.runs().first().and_then(first)).collect();
        Command { label, by: Arc::clone(&self.name), work: Work::Record, blocks, runs, already_freed }
    }

    /// Reports a copy of pageable memory, if those are not allowed.
    fn check_pinned(&self, label: &Label, source: &Operand, target: &Operand) {
        if !self.machine.config.strict_pinned {
            return;
        }
        for operand in [source, target] {
            let start = operand.ptr().addr();
            if self.machine.detector.memory_kind(start) == Some(MemoryKind::Pageable) {
                let did = format!("copy on {}", self.name);
                let finding = Finding::new(FindingKind::PageableCopy, label, did, "");
                let bytes = operand.layout().elements() * operand.dtype().size();
                self.machine.detector.report_at(finding, start..start + bytes);
            }
        }
    }
}

// SAFETY: a queued command owns its operands, and is dropped once it has run, before its place has passed. What accesses memory checks the accesses.
unsafe impl Stream for SimStream {
    fn begin(&mut self, label: &Label) {
        self.labels.begin(label);
        self.machine.detector.bind(label.stream, self.actor);
    }

    fn label(&self) -> Option<Label> {
        self.labels.given()
    }

    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        self.labels.begin_step(step, buffers);
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        Some(self.step_note.clone())
    }

    fn host_uses(&mut self, what: &'static str, operands: &[Operand<'static>]) {
        self.after_this_thread();
        let label = self.labels.next(what);
        // The stream's order is no order for the host: what was queued must have run.
        if !self.machine.has_passed(self.machine.end(self.id)) {
            let did = format!("step of the host between commands of {}", self.name);
            self.machine.detector.report(Finding::new(FindingKind::HostTooEarly, &label, did, ""));
        }
        self.machine.detector.access(self.actor, &label, &touches(&label, operands));
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        if call.kernel.device != DeviceKind::SIM {
            return Err(Error::WrongDevice { kernel: call.kernel.device, device: self.device() });
        }
        call.mark_overlapping_shared()?;
        let label = self.labels.next(call.kernel.op.name());
        let command = self.command_for(label, call.operands.iter());
        // SAFETY: the copies are used by the queued command alone, and the originals are not used after this call.
        let operands = call.operands.iter().map(|operand| unsafe { operand.duplicate() }).collect();
        let work = Work::Launch { kernel: call.kernel, operands, inputs: call.inputs, params: *call.params };
        self.machine.push(self.id, Command { work, ..command });
        Ok(())
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        if !check_copy(source, target)? {
            return Ok(());
        }
        let label = self.labels.next("copy");
        self.check_pinned(&label, source, target);
        let command = self.command_for(label, [source, &*target].into_iter());
        // SAFETY: the copy is used by the queued command alone, and the original is not used after this call.
        let source = unsafe { source.duplicate() };
        // SAFETY: as above.
        let target = unsafe { target.duplicate() };
        let work = Work::Copy { source, target };
        self.machine.push(self.id, Command { work, ..command });
        Ok(())
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        check_fill(target, value)?;
        let label = self.labels.next("fill");
        let command = self.command_for(label, [&*target].into_iter());
        // SAFETY: the copy is used by the queued command alone, and the original is not used after this call.
        let target = unsafe { target.duplicate() };
        let work = Work::Fill { target, value };
        self.machine.push(self.id, Command { work, ..command });
        Ok(())
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        FnContext::new(operands)?;
        let label = self.labels.next("call");
        let command = self.command_for(label, operands.iter());
        // SAFETY: the copies are used by the queued command alone, and the originals are not used after this call.
        let operands = operands.iter().map(|operand| unsafe { operand.duplicate() }).collect();
        let function = std::mem::take(function);
        self.machine.push(self.id, Command { work: Work::Call { function, operands }, ..command });
        Ok(())
    }

    fn call_raw(&mut self, _: &mut RawFn<'_>, _: &mut [Operand<'static>]) -> Result<(), CallError> {
        Err(Error::NoRawStream.into())
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        // A released event is refused before anything is reported.
        self.machine.events.is_recorded(event)?;
        let label = self.labels.next("record");
        let command = self.command_for(label, [].into_iter());
        let moment: Moment = self.machine.detector.release(self.actor);
        self.machine.push_record(self.id, command, event, moment)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        let record = self.machine.record(event)?;
        let label = self.labels.next("wait");
        let Some(record) = record else {
            let did = format!("wait for {event} on {}", self.name);
            self.machine.detector.report(Finding::new(FindingKind::NeverRecorded, &label, did, ""));
            return Err(Error::EventNotRecorded { event, device: self.device() });
        };
        let command = self.command_for(label, [].into_iter());
        self.machine.detector.acquire(self.actor, &record.moment);
        self.machine.push(self.id, Command { work: Work::Wait(record.place), ..command });
        Ok(())
    }

    /// Runs the queued commands of this stream and those that they wait for. Failures are reported only by
    /// [`take_failures`](streamvm_ep::Device::take_failures); an error here would report them twice.
    fn synchronize(&mut self) -> Result<(), Error> {
        let place = self.machine.end(self.id);
        self.machine.run_until(place, None);
        let detector = &self.machine.detector;
        let moment = detector.release(self.actor);
        detector.acquire(detector.this_thread(), &moment);
        Ok(())
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.machine.close(self.id);
    }
}

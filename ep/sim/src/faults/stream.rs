//! The stream that wraps another one and injects faults.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, MutexGuard, PoisonError};

use streamvm_ep::{
    CallError, CommandSequence, Device, DeviceId, Error, EventId, InlineFn, KernelCall, Label, LateCause, LateFailure,
    OneByOne, Operand, Prepared, ProgramStep, RawFn, Scalar, SegmentRun, SequenceError, StepNote, Stream,
};

use crate::faults::device::pool_of;
use crate::faults::gate::Gate;
use crate::faults::plan::{FaultPlan, Inner};
use crate::faults::rule::{CallSite, Fault, Point};

/// A stream of a [`FaultyDevice`](crate::faults::FaultyDevice).
pub(super) struct FaultyStream {
    device: Arc<dyn Device>,
    inner: Arc<Inner>,
    plan: Arc<FaultPlan>,
    label: Option<Label>,
    step: Option<ProgramStep>,
    /// The number of calls since `label` was set.
    place: u64,
    /// The gates that hold commands of this stream, or commands of other streams that it waits for.
    gates: Vec<Gate>,
}

/// Whether the command is still to be made.
enum Next {
    Run,
    Skip,
}

impl FaultyStream {
    pub(super) fn new(device: Arc<dyn Device>, inner: Arc<Inner>, plan: Arc<FaultPlan>) -> FaultyStream {
        FaultyStream { device, inner, plan, label: None, step: None, place: 0, gates: Vec::new() }
    }

    fn id(&self) -> DeviceId {
        self.device.id()
    }

    /// Injects the fault of the plan for this call. Returns an error, or whether the call is to be made.
    fn at(&mut self, point: Point) -> Result<Next, Error> {
        let device = self.id();
        let call = CallSite { point, device, kind: None, label: self.label.as_ref(), place: self.place };
        self.place += 1;
        let mut next = Next::Run;
        match self.plan.at(&call) {
            None | Some(Fault::OutOfMemory) => {}
            Some(Fault::Error) => return Err(Error::Injected(self.describe(point))),
            Some(Fault::With(error)) => return Err(error),
            Some(Fault::Panic) => resume_unwind(Box::new(format!("injected panic: {}", self.describe(point)))),
            Some(Fault::Lost) => self.plan.lose(device, &format!("injected: {}", self.describe(point))),
            Some(Fault::Late) => {
                let (stream, seq) = self.label.as_ref().map_or((0, 0), |label| (label.stream, label.seq));
                let cause = LateCause::Device(Error::Injected(self.describe(point)));
                self.plan.add_late_failure(device, LateFailure { stream, seq, step: self.step, cause });
                next = Next::Skip;
            }
            Some(Fault::Stall(gate)) => {
                gate.arrive();
                gate.wait_open(None, || false);
            }
            Some(Fault::Hold(gate)) => {
                gate.arrive();
                self.plan.add_holding(&gate);
                self.hold(&[gate]);
            }
        }
        self.plan.check(device).map(|()| next)
    }

    fn describe(&self, point: Point) -> String {
        match &self.label {
            Some(label) => format!("{point} of {label} on {}", self.id()),
            None => format!("{point} on {}", self.id()),
        }
    }

    fn hold(&mut self, gates: &[Gate]) {
        self.gates.retain(|gate| !gate.is_open());
        for gate in gates {
            if !gate.is_open() && !self.gates.iter().any(|known| known.is_same(gate)) {
                self.gates.push(gate.clone());
            }
        }
    }

    /// Calls the wrapped stream. If another thread loses the device meanwhile, the commands that this call queued are run to completion
    /// here, because the other thread could not do it.
    fn inner<T>(&self, call: impl FnOnce(&mut dyn Stream) -> T) -> T {
        let mut inner: MutexGuard<'_, Box<dyn Stream>> = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut **inner);
        drop(inner);
        if self.plan.is_lost(self.id()) {
            self.plan.drain(self.id());
        }
        result
    }
}

// SAFETY: it hands each command to the wrapped stream, for which the duties hold, or drops it. It keeps no operand.
unsafe impl Stream for FaultyStream {
    fn begin(&mut self, label: &Label) {
        (self.label, self.step) = (Some(label.clone()), None);
        self.place = 0;
        // A loss is reported by the next call, which can return it.
        if self.at(Point::Begin).is_ok() {
            self.inner(|inner| inner.begin(label));
        }
    }

    fn number(&mut self, stream: u32, seq: u64) {
        self.step = None;
        self.inner(|inner| inner.number(stream, seq));
    }

    fn label(&self) -> Option<Label> {
        self.inner(|inner| inner.label())
    }

    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        self.step = Some(step);
        self.inner(|inner| inner.begin_step(step, buffers));
    }

    fn host_uses(&mut self, what: &'static str, operands: &[Operand<'static>]) {
        self.inner(|inner| inner.host_uses(what, operands));
    }

    fn after_host_code(&mut self) {
        self.inner(|inner| inner.after_host_code());
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        self.inner(|inner| inner.step_note())
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        match self.at(Point::Launch)? {
            Next::Run => self.inner(|inner| inner.launch(call)),
            Next::Skip => Ok(()),
        }
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        match self.at(Point::Copy)? {
            Next::Run => self.inner(|inner| inner.copy(source, target)),
            Next::Skip => Ok(()),
        }
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        match self.at(Point::Fill)? {
            Next::Run => self.inner(|inner| inner.fill(target, value)),
            Next::Skip => Ok(()),
        }
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        match self.at(Point::Call)? {
            Next::Run => {
                let mut known = self.plan.tracked(std::mem::take(function));
                self.inner(|inner| inner.call(&mut known, operands))
            }
            Next::Skip => {
                function.clear();
                Ok(())
            }
        }
    }

    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        if let Ok(sequence) = CommandSequence::of(prepared) {
            // Each command comes to this stream.
            return sequence.execute(&mut OneByOne(self), operands, run);
        }
        match self.at(Point::Call).map_err(SequenceError::Refused)? {
            Next::Run => self.inner(|inner| inner.execute(prepared, operands, run)),
            Next::Skip => Ok(None),
        }
    }

    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        match self.at(Point::Call)? {
            Next::Run => self.inner(|inner| inner.call_raw(function, operands)),
            Next::Skip => Ok(()),
        }
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.at(Point::Record)?;
        self.hold(&[]);
        // Before the record, so that no thread sees it as passed in between. If the record is refused, an earlier record of the event
        // keeps its own gates.
        let pool = pool_of(&*self.device);
        let before = self.plan.holders(pool, event);
        self.plan.set_holders(pool, event, &self.gates);
        let recorded = self.inner(|inner| inner.record(event));
        if recorded.is_err() {
            self.plan.set_holders(pool, event, &before);
        }
        recorded
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        self.at(Point::Wait)?;
        let gates = self.plan.holders(pool_of(&*self.device), event);
        self.inner(|inner| inner.wait(event))?;
        self.hold(&gates);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.at(Point::Synchronize)?;
        let (plan, device) = (&self.plan, self.id());
        for gate in &self.gates {
            gate.wait_open(None, || plan.is_lost(device));
        }
        plan.check(device)?;
        let result = self.inner(|inner| inner.synchronize());
        self.plan.check(device)?;
        result
    }
}

impl fmt::Debug for FaultyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStream").field("device", &self.id()).field("label", &self.label).finish_non_exhaustive()
    }
}

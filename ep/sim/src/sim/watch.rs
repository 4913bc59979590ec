//! Reports the accesses of a stream of an immediate device, such as the CPU, to the race detector.

use std::sync::Arc;

use streamvm_ep::{
    ActorId, CallError, Error, EventId, InlineFn, KernelCall, Label, Operand, Prepared, ProgramStep, RawFn, Scalar,
    SegmentRun, SequenceError, StepNote, Stream,
};

use crate::races::Detector;
use crate::sim::accesses::{Labels, touches};

/// Wraps a stream that runs each command in the call that submits it. Right before a command runs, its accesses are reported to the
/// detector, as those of the returned actor, or of the actor in the label if there is one. No order is reported: the code that runs the
/// stream releases and acquires for the actor.
///
/// A command that `inner` refuses is reported too, because its order must be right as well.
pub fn watch(inner: Box<dyn Stream>, name: &str, detector: Arc<Detector>) -> (Box<dyn Stream>, ActorId) {
    let actor = detector.actor(name);
    (Box::new(WatchedStream { inner, actor, detector, labels: Labels::new(u32::MAX) }), actor)
}

struct WatchedStream {
    inner: Box<dyn Stream>,
    actor: ActorId,
    detector: Arc<Detector>,
    labels: Labels,
}

impl WatchedStream {
    fn report<'a>(&mut self, what: &str, operands: impl IntoIterator<Item = &'a Operand<'a>>) {
        let label = self.labels.next(what);
        self.detector.access(self.actor, &label, &touches(&label, operands));
    }
}

// SAFETY: it hands each command to the wrapped stream, for which the duties hold, and keeps no operand.
unsafe impl Stream for WatchedStream {
    fn begin(&mut self, label: &Label) {
        self.labels.begin(label);
        self.actor = label.actor.unwrap_or(self.actor);
        self.inner.begin(label);
    }

    fn number(&mut self, stream: u32, seq: u64) {
        self.inner.number(stream, seq);
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        self.inner.step_note()
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        self.report(call.kernel.op.name(), call.operands.iter());
        self.inner.launch(call)
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        // A copy of a view onto itself touches no bytes.
        if !source.same_view(target) {
            self.report("copy", [source, &*target]);
        }
        self.inner.copy(source, target)
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        self.report("fill", [&*target]);
        self.inner.fill(target, value)
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        self.report("call", operands.iter());
        self.inner.call(function, operands)
    }

    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        self.report("call", operands.iter());
        self.inner.execute(prepared, operands, run)
    }

    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand<'static>]) -> Result<(), CallError> {
        self.report("call", operands.iter());
        self.inner.call_raw(function, operands)
    }

    fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.inner.record(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        self.inner.wait(event)
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.inner.synchronize()
    }
}

//! A stream of an immediate device, such as the CPU, whose accesses the race detector is told.

use std::sync::Arc;

use crate::closure::InlineFn;
use crate::error::{CallError, Error};
use crate::event::EventId;
use crate::kernel::KernelCall;
use crate::label::Label;
use crate::operand::Operand;
use crate::races::{ActorId, Detector};
use crate::raw::RawFn;
use crate::scalar::Scalar;
use crate::sim::accesses::{Labels, touches};
use crate::stream::Stream;

/// Wraps a stream that runs each command in the call that gives it: the detector is told its accesses, as those of the
/// actor that comes with it, or of the one that the label names, right before they are made. It is told no order: whoever runs the stream knows what a
/// command comes after, and releases and acquires for the actor.
///
/// A command that `inner` refuses counts as an access too: it was meant to be one, and its order must be right.
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
    fn tell<'a>(&mut self, what: &str, operands: impl IntoIterator<Item = &'a Operand>) {
        let label = self.labels.next(what);
        self.detector.access(self.actor, &label, &touches(&label, operands));
    }
}

impl Stream for WatchedStream {
    fn begin(&mut self, label: &Label) {
        self.labels.begin(label);
        self.actor = label.actor.unwrap_or(self.actor);
        self.inner.begin(label);
    }

    fn number(&mut self, stream: u32, seq: u64) {
        self.inner.number(stream, seq);
    }

    fn launch(&mut self, call: &mut KernelCall<'_>) -> Result<(), Error> {
        self.tell(call.kernel.op.name(), call.operands.iter());
        self.inner.launch(call)
    }

    fn copy(&mut self, source: &Operand, target: &mut Operand) -> Result<(), Error> {
        // A view copied onto itself is not touched.
        if !source.same_view(target) {
            self.tell("copy", [source, &*target]);
        }
        self.inner.copy(source, target)
    }

    fn fill(&mut self, target: &mut Operand, value: Scalar) -> Result<(), Error> {
        self.tell("fill", [&*target]);
        self.inner.fill(target, value)
    }

    fn call(&mut self, function: &mut InlineFn, operands: &mut [Operand]) -> Result<(), CallError> {
        self.tell("call", operands.iter());
        self.inner.call(function, operands)
    }

    fn call_raw(&mut self, function: &mut RawFn<'_>, operands: &mut [Operand]) -> Result<(), CallError> {
        self.tell("call", operands.iter());
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

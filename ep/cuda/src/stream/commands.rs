//! A stream as the steps of a program use it: calls of [`Stream`] by another trait, and [`Graphs`].

use std::sync::Arc;

use streamvm_ep::{
    Commands, Error, EventId, Graphs, KernelCall, Label, Operand, ProgramStep, Scalar, StepNote, Stream,
};

use crate::stream::CudaStream;

impl Commands for CudaStream {
    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        Stream::begin_step(self, step, buffers);
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        Stream::launch(self, call)
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        Stream::copy(self, source, target)
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        Stream::fill(self, target, value)
    }

    fn label(&self) -> Option<Label> {
        Stream::label(self)
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Stream::synchronize(self)
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        Stream::wait(self, event)
    }

    fn step_note(&self) -> Option<Arc<StepNote>> {
        Stream::step_note(self)
    }

    fn after_host_code(&mut self) {
        Stream::after_host_code(self);
    }

    fn graphs(&mut self) -> Option<&mut dyn Graphs> {
        Some(self)
    }
}

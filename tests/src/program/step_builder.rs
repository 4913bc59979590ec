//! The builder of a program's lists.

use streamvm::{InstructionList, InstructionsBuilder};

/// A builder whose calls are on the lane of the current step, and on workers if the step asks for it.
pub(super) struct StepBuilder {
    builder: InstructionsBuilder,
    pub(super) lane: u32,
    pub(super) on_workers: bool,
}

impl StepBuilder {
    /// The builder before the first step.
    pub(super) fn new(lane: u32) -> StepBuilder {
        StepBuilder { builder: InstructionsBuilder::new(), lane, on_workers: false }
    }

    /// Adds to the list with the options of the step.
    pub(super) fn with<T>(&mut self, build: impl FnOnce(&mut InstructionsBuilder) -> T) -> T {
        let mut builder = self.builder.on_lane(self.lane);
        let mut builder = if self.on_workers { builder.on_workers() } else { builder.on_compute() };
        build(&mut builder)
    }

    /// The list so far; the next one begins.
    pub(super) fn take_list(&mut self) -> InstructionList {
        std::mem::take(&mut self.builder).finish()
    }
}

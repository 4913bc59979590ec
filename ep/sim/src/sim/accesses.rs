//! The accesses of a command, in the form that the detector needs.

use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::{Label, Operand, ProgramStep};

use crate::races::Touch;

/// The touches of a command's operands, in order. `label` may have the allocation of each.
pub(super) fn touches<'a>(label: &Label, operands: impl IntoIterator<Item = &'a Operand<'a>>) -> SmallVec<[Touch; 4]> {
    let allocation = |index: usize| label.allocations.get(index).copied().filter(|&allocation| allocation != 0);
    operands.into_iter().enumerate().map(|(index, operand)| Touch::of(operand, allocation(index))).collect()
}

/// The labels of a stream's commands: the one that was set, or a number of their own until then.
#[derive(Debug)]
pub(super) struct Labels {
    stream: u32,
    count: u64,
    given: Option<Label>,
    /// The step of a program, with the allocations of its operands in place of those of the instruction.
    step: Option<(ProgramStep, Arc<[u64]>)>,
}

impl Labels {
    /// Uses `stream` as the number of the stream until a label is set.
    pub(super) fn new(stream: u32) -> Labels {
        Labels { stream, count: 0, given: None, step: None }
    }

    pub(super) fn begin(&mut self, label: &Label) {
        (self.given, self.step) = (Some(label.clone()), None);
    }

    /// The label that was set.
    pub(super) fn given(&self) -> Option<Label> {
        self.given.clone()
    }

    /// The next commands belong to a step of a program; see [`Stream::begin_step`](streamvm_ep::Stream::begin_step).
    pub(super) fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        let known: &[u64] = self.given.as_ref().map_or(&[], |label| &label.allocations);
        let allocations = buffers.iter().map(|&buffer| known.get(buffer).copied().unwrap_or(0)).collect();
        self.step = Some((step, allocations));
    }

    /// The label of the next command, which does `what`.
    pub(super) fn next(&mut self, what: &str) -> Label {
        self.count += 1;
        let label = match &self.given {
            Some(label) => label.clone(),
            None => Label::new(self.stream, self.count, what),
        };
        match &self.step {
            Some((step, allocations)) => Label { step: Some(*step), allocations: Arc::clone(allocations), ..label },
            None => label,
        }
    }
}

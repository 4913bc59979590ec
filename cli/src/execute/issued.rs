//! Finds the statement that a failed instruction came from.
//!
//! A failure names a stream, a number on the stream, and the op or function. The numbers of a stream count its instructions in the
//! order of submission, so counting the emitted instructions of each stream finds the statement.

use std::collections::{HashMap, VecDeque};

use crate::base::engine::{Failure, Instruction, Kind, Place, StreamKey, Tensor};
use crate::emit::READ_BACK;
use crate::syntax::source::Span;

/// Number of instructions that are remembered; a failure of an older instruction is reported without its statement.
const REMEMBERED: usize = 1 << 16;

#[derive(Debug)]
struct Entry {
    stream: StreamKey,
    number: u64,
    what: &'static str,
    span: Span,
}

/// The statements of the instructions that may still fail.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    numbers: HashMap<StreamKey, u64>,
    entries: VecDeque<Entry>,
}

impl Issued {
    /// Notes the instructions that a statement has added.
    pub(crate) fn note(&mut self, instructions: &[Instruction], span: Span) {
        for instruction in instructions {
            let number = self.numbers.entry(instruction.stream).or_default();
            *number += 1;
            let what = match &instruction.kind {
                Kind::Call { op, .. } => op.name(),
                other => other.word(),
            };
            if self.entries.len() == REMEMBERED {
                self.entries.pop_front();
            }
            self.entries.push_back(Entry { stream: instruction.stream, number: *number, what, span });
        }
    }

    /// Notes that the values of a host tensor were read, which submits one instruction on [`READ_BACK`].
    pub(crate) fn note_read_back(&mut self, tensor: &Tensor) {
        debug_assert!(tensor.place() == Place::Host && tensor.layout().is_contiguous());
        *self.numbers.entry(READ_BACK).or_default() += 1;
    }

    /// Forgets all instructions so far, because they have passed without a failure.
    pub(crate) fn forget(&mut self) {
        self.entries.clear();
    }

    /// The statement of the failed instruction, if it is remembered.
    pub(crate) fn find(&self, failure: &Failure) -> Option<Span> {
        self.entries
            .iter()
            .find(|entry| {
                entry.stream == failure.stream && entry.number == failure.point.seq && entry.what == failure.what
            })
            .map(|entry| entry.span)
    }
}

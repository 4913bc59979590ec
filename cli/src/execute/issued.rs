//! Finds the statement that a failed instruction came from.
//!
//! A failure names a stream, a number on the stream, and the op or function. The numbers of a stream count its instructions in the
//! order of submission, so counting the emitted instructions of each stream finds the statement. A run of an executable is one
//! instruction; its failure also names the step, whose statement is kept with the program.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::base::engine::{Cause, Failure, Instruction, Kind, Place, StreamKey, Tensor};
use crate::emit::READ_BACK;
use crate::syntax::source::Span;

/// Number of instructions that are remembered; a failure of an older instruction is reported without its statement.
const REMEMBERED: usize = 1 << 16;

#[derive(Debug)]
struct Entry {
    stream: StreamKey,
    number: u64,
    what: What,
    span: Span,
    /// The `run` whose program has the statement.
    run: Option<Span>,
}

#[derive(Debug)]
enum What {
    Instruction(&'static str),
    /// A run of an executable: the name of the program, and the statements of its steps.
    Run(String, Arc<[Span]>),
}

/// The statement that a failed instruction came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) span: Span,
    /// The `run` whose program has the statement.
    pub(crate) run: Option<Span>,
}

/// The statements of the instructions that may still fail.
#[derive(Debug, Default)]
pub(crate) struct Issued {
    numbers: HashMap<StreamKey, u64>,
    entries: VecDeque<Entry>,
    /// The `run` whose statements are emitted.
    pub(crate) within: Option<Span>,
}

impl Issued {
    /// Notes the instructions that a statement has added.
    pub(crate) fn note(&mut self, instructions: &[Instruction], span: Span) {
        for instruction in instructions {
            let what = match &instruction.kind {
                Kind::Call { op, .. } => op.name(),
                other => other.word(),
            };
            self.add(instruction.stream, What::Instruction(what), span);
        }
    }

    /// Notes a run of an executable; `steps` are the statements of its steps.
    pub(crate) fn note_run(&mut self, stream: StreamKey, program: &str, steps: &Arc<[Span]>, span: Span) {
        self.add(stream, What::Run(program.to_owned(), steps.clone()), span);
    }

    /// Notes a copy that is a step of an executable.
    pub(crate) fn note_copy(&mut self, stream: StreamKey, span: Span) {
        self.add(stream, What::Instruction("copy"), span);
    }

    fn add(&mut self, stream: StreamKey, what: What, span: Span) {
        let number = self.numbers.entry(stream).or_default();
        *number += 1;
        if self.entries.len() == REMEMBERED {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { stream, number: *number, what, span, run: self.within });
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
    pub(crate) fn find(&self, failure: &Failure) -> Option<Found> {
        let is_it = |entry: &&Entry| {
            let what = match &entry.what {
                What::Instruction(what) => what,
                What::Run(program, _) => program.as_str(),
            };
            entry.stream == failure.stream && entry.number == failure.point.seq && what == failure.what
        };
        let entry = self.entries.iter().find(is_it)?;
        let step = match (&entry.what, &failure.cause) {
            (What::Run(_, steps), Cause::Step(failed)) => steps.get(failed.step).copied(),
            _ => None,
        };
        Some(match step {
            Some(step) => Found { span: step, run: Some(entry.span) },
            None => Found { span: entry.span, run: entry.run },
        })
    }
}

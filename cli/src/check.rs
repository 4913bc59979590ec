//! Checks a whole script before anything of it runs.
//!
//! Every statement is emitted once, on tensors without values, into a list that is dropped: whatever the
//! builder would refuse is refused now. The body of a `repeat` is checked once, which is enough because a
//! name keeps its dtype, shape and place over the rounds.
//!
//! Streams are counted as an engine counts them: those of the instructions, those that staging adds for copies between the
//! host and a device that does not reach its memory, and the one that reads values back.

use std::collections::HashSet;

use crate::ast::{Block, Statement, StatementKind};
use crate::devices::Devices;
use crate::diagnostic::Diagnostic;
use crate::emit::{Emitter, HeadersOnly, Wanted};
use crate::engine::{Capabilities, InstructionList, MAX_STREAMS, StreamKey};
use crate::issued::Issued;
use crate::source::Source;

/// Checks a script.
///
/// # Errors
/// A message for every statement that is wrong; what depends on a wrong `let` is not reported.
pub fn check(source: &Source, script: &Block, devices: &Devices) -> Result<(), Vec<Diagnostic>> {
    let emitter = Emitter::new(source, devices, HeadersOnly::with_elements());
    let mut checker = Checker { emitter, streams: HashSet::new(), errors: Vec::new() };
    checker.block(script, true);
    if checker.errors.is_empty() { Ok(()) } else { Err(checker.errors) }
}

struct Checker<'a> {
    emitter: Emitter<'a>,
    /// The streams so far; no more are kept than one too many.
    streams: HashSet<StreamKey>,
    errors: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn block(&mut self, block: &Block, top: bool) {
        for statement in block {
            self.statement(statement, top);
            // Only the types and streams matter here: keeping the instructions of a long script would cost memory.
            let list = self.emitter.take_list();
            self.count_streams(list, statement);
        }
    }

    /// Notes the streams of what a statement has emitted; the one that is one too many is told, once.
    fn count_streams(&mut self, mut list: InstructionList, statement: &Statement) {
        let staged = list.staged(&Capabilities::standard(), usize::MAX);
        let list = staged.map_or(list, |staged| staged.list);
        for key in list.instructions().iter().map(|instruction| instruction.stream) {
            self.note_stream(key, statement);
        }
    }

    fn note_stream(&mut self, key: StreamKey, statement: &Statement) {
        if self.streams.len() > MAX_STREAMS || !self.streams.insert(key) || self.streams.len() <= MAX_STREAMS {
            return;
        }
        self.errors.push(
            Diagnostic::new(
                statement.span,
                format!("this is the first statement on {key}, and an engine has at most {MAX_STREAMS} streams"),
            )
            .with_help("use fewer lanes, or fewer devices"),
        );
    }

    fn statement(&mut self, statement: &Statement, top: bool) {
        match &statement.kind {
            StatementKind::Device { name, .. } if !top => self.errors.push(
                Diagnostic::new(name.span, "a device is named outside of blocks")
                    .with_help("move this line in front of the block"),
            ),
            StatementKind::Repeat { body, .. } => self.repeat(body),
            StatementKind::Time { body, .. } => self.block(body, false),
            StatementKind::Save { path, .. } if !path.value.ends_with(".npy") => {
                self.errors.push(Diagnostic::new(path.span, "only .npy files can be saved, expected a name with .npy"));
            }
            _ => match self.emitter.statement(statement) {
                Ok(Wanted::Nothing) => {}
                Ok(Wanted::One(_) | Wanted::Two(..)) => self.note_stream(Issued::READ_BACK, statement),
                Err(error) => {
                    // One mistake, one message: a name that a wrong `let` would have bound stays known.
                    if !error.echo {
                        self.errors.push(error);
                    }
                    if let StatementKind::Let { name, .. } = &statement.kind {
                        self.emitter.poison(name);
                    }
                }
            },
        }
    }

    fn repeat(&mut self, body: &Block) {
        let before = self.emitter.names().clone();
        let errors = self.errors.len();
        self.block(body, false);
        if self.errors.len() > errors {
            return; // what the names stand for is not certain
        }
        for (name, old) in &before {
            let Some(new) = self.emitter.names().get(name) else { continue };
            let same = old.tensor.dtype() == new.tensor.dtype()
                && old.tensor.shape() == new.tensor.shape()
                && old.tensor.place() == new.tensor.place();
            if !same {
                let what = |tensor: &crate::engine::Tensor| {
                    format!("{}{} on {}", tensor.dtype(), tensor.shape(), tensor.place())
                };
                self.errors.push(
                    Diagnostic::new(
                        new.span,
                        format!(
                            "`{name}` is {} in the first round of this `repeat` and would be {} in the second",
                            what(&old.tensor),
                            what(&new.tensor)
                        ),
                    )
                    .with_help("a name keeps its dtype, shape and place over the rounds: use another name"),
                );
            }
        }
    }
}

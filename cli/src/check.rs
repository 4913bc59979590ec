//! Checks a whole script before anything of it runs.
//!
//! Every statement is emitted once, on tensors without values, into a list that is dropped: whatever the
//! builder would refuse is refused now. The body of a `repeat` is checked once, which is enough because a
//! name keeps its dtype, shape and place over the rounds.

use crate::ast::{Block, Statement, StatementKind};
use crate::devices::Devices;
use crate::diagnostic::Diagnostic;
use crate::emit::{Emitter, HeadersOnly};
use crate::source::Source;

/// Checks a script.
///
/// # Errors
/// A message for every statement that is wrong; what depends on a wrong `let` is not reported.
pub fn check(source: &Source, script: &Block, devices: &Devices) -> Result<(), Vec<Diagnostic>> {
    let mut checker = Checker { emitter: Emitter::new(source, devices, HeadersOnly::default()), errors: Vec::new() };
    checker.block(script, true);
    if checker.errors.is_empty() { Ok(()) } else { Err(checker.errors) }
}

struct Checker<'a> {
    emitter: Emitter<'a>,
    errors: Vec<Diagnostic>,
}

impl Checker<'_> {
    fn block(&mut self, block: &Block, top: bool) {
        for statement in block {
            self.statement(statement, top);
            // Only the types matter here: keeping the instructions of a long script would cost memory.
            drop(self.emitter.take_list());
        }
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
            _ => {
                if let Err(error) = self.emitter.statement(statement) {
                    // One mistake, one message: a name that a wrong `let` would have bound stays known.
                    if !error.echo {
                        self.errors.push(error);
                    }
                    if let StatementKind::Let { name, .. } = &statement.kind {
                        self.emitter.poison(name);
                    }
                }
            }
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

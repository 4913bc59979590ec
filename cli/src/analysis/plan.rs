//! `streamvm check`: the instruction list of a whole script, with the waits and records that order needs.
//!
//! Nothing runs and no device is touched; only the headers of files are read. A `repeat` is unrolled up to a limit, because its
//! rounds are ordered against each other like other instructions. Nothing decides conditions here: the blocks of a `while` and an `if` are
//! planned once.

use crate::base::engine::{InstructionList, PlanOptions, SyncCounts, plan as plan_list};
use crate::emit::devices::Devices;
use crate::emit::{Emitter, HeadersOnly};
use crate::syntax::ast::{Block, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Source, Span};

/// Another round of a `repeat` is planned only while the list has fewer instructions than this: enough rounds to see what they
/// have in common, in a list that a person can still read.
pub const MAX_UNROLLED: usize = 1000;

/// The planned instruction list of a script.
#[derive(Debug)]
pub struct Plan {
    /// The list, with its waits and records.
    pub list: InstructionList,
    /// Counts per stream, in order of first use.
    pub counts: Vec<SyncCounts>,
    /// The parts of the script that the plan leaves out: each with its place and a sentence for the user.
    pub notes: Vec<(Span, String)>,
}

/// Plans a script that [`check`](crate::analysis::check::check) has accepted.
///
/// # Errors
/// The message of the builder, if it refuses an instruction of a later round of a `repeat` although it took the first round.
pub fn plan(source: &Source, script: &Block, devices: &Devices) -> Result<Plan, Diagnostic> {
    let mut planner =
        Planner { source, emitter: Emitter::new(source, devices, HeadersOnly::default()), notes: Vec::new() };
    planner.block(script)?;
    let list = planner.emitter.take_list();
    let planned = plan_list(list, &PlanOptions::default())
        .map_err(|error| Diagnostic::new(Span::default(), format!("the list cannot be planned: {error}")))?;
    Ok(Plan { list: planned.list, counts: planned.counts, notes: planner.notes })
}

/// The first of the errors of a program.
fn first(errors: Vec<Diagnostic>, span: Span) -> Diagnostic {
    errors.into_iter().next().unwrap_or_else(|| Diagnostic::new(span, "the program follows from an earlier error"))
}

struct Planner<'a> {
    source: &'a Source,
    emitter: Emitter<'a>,
    notes: Vec<(Span, String)>,
}

impl Planner<'_> {
    fn block(&mut self, block: &Block) -> Result<(), Diagnostic> {
        for statement in block {
            let _site = self.source.site(statement.span, None).enter();
            match &statement.kind {
                StatementKind::Repeat { count, body } => self.repeat(*count, body, statement.span)?,
                StatementKind::While { condition, body } => {
                    self.note(statement.span, "one round is planned, whatever the condition");
                    self.emitter.read_condition(condition)?;
                    self.inner(body)?;
                }
                StatementKind::If { condition, then, otherwise } => {
                    let what = if otherwise.is_empty() { "the block is planned" } else { "both blocks are planned" };
                    self.note(statement.span, &format!("{what}, whatever the condition"));
                    self.emitter.read_condition(condition)?;
                    self.inner(then)?;
                    self.inner(otherwise)?;
                }
                StatementKind::IfRank { then, otherwise, .. } => {
                    self.note(statement.span, "what all ranks do is planned, one block after the other");
                    self.inner(then)?;
                    self.inner(otherwise)?;
                }
                StatementKind::Time { body, .. } | StatementKind::Scope { body, .. } => self.block(body)?,
                StatementKind::Program(program) => {
                    // `check` has accepted the program, so this gives no message.
                    self.emitter.define(program).map_err(|errors| first(errors, statement.span))?;
                }
                StatementKind::Run(run) => {
                    let program = self.emitter.enter(run)?;
                    self.block(&program.block.body)?;
                    self.emitter.leave(run, &program)?;
                }
                _ => {
                    self.emitter.statement(statement)?;
                }
            }
        }
        Ok(())
    }

    /// Notes what is left out of a block, once: every round of an outer block reaches its inner blocks again.
    fn note(&mut self, span: Span, what: &str) {
        if self.notes.iter().all(|(noted, _)| *noted != span) {
            self.notes.push((span, what.to_owned()));
        }
    }

    /// Plans the block of a `while` or an `if`.
    fn inner(&mut self, block: &Block) -> Result<(), Diagnostic> {
        self.emitter.begin_block();
        self.block(block)?;
        self.emitter.end_block();
        Ok(())
    }

    fn repeat(&mut self, count: u64, body: &Block, span: Span) -> Result<(), Diagnostic> {
        for round in 0..count {
            let before = self.emitter.list().len();
            if round > 0 && before >= MAX_UNROLLED {
                self.note(span, &format!("{round} of {count} rounds are planned"));
                return Ok(());
            }
            self.block(body)?;
            if self.emitter.list().len() == before {
                return Ok(()); // rounds that add nothing now add nothing later
            }
        }
        Ok(())
    }
}

//! `streamvm check`: the one list that a script comes to, with the waits and records that order needs.
//!
//! Nothing runs and no device is touched; of files only the headers are read. A `repeat` is unrolled, up
//! to a limit, since its rounds are ordered against each other like anything else.

use crate::ast::{Block, StatementKind};
use crate::devices::Devices;
use crate::diagnostic::Diagnostic;
use crate::emit::{Emitter, HeadersOnly};
use crate::engine::{InstructionList, PlanOptions, SyncCounts, plan as plan_list};
use crate::source::{Source, Span};

/// Another round of a `repeat` is planned only while the list has fewer instructions than this: enough to
/// see what is the same in every round, and still a list that can be read.
pub const MAX_UNROLLED: usize = 1000;

/// What a script comes to.
#[derive(Debug)]
pub struct Plan {
    /// The list, waits and records written out.
    pub list: InstructionList,
    /// Counts per stream, in order of first use.
    pub counts: Vec<SyncCounts>,
    /// What was left out: a place and a sentence.
    pub notes: Vec<(Span, String)>,
}

/// Plans a script that [`check`](crate::check::check) has found fine.
///
/// # Errors
/// What the builder refuses in a later round of a `repeat` than the first.
pub fn plan(source: &Source, script: &Block, devices: &Devices) -> Result<Plan, Diagnostic> {
    let mut planner = Planner { emitter: Emitter::new(source, devices, HeadersOnly::default()), notes: Vec::new() };
    planner.block(script)?;
    let list = planner.emitter.take_list();
    let planned = plan_list(list, &PlanOptions::default())
        .map_err(|error| Diagnostic::new(Span::default(), format!("the list cannot be planned: {error}")))?;
    Ok(Plan { list: planned.list, counts: planned.counts, notes: planner.notes })
}

struct Planner<'a> {
    emitter: Emitter<'a>,
    notes: Vec<(Span, String)>,
}

impl Planner<'_> {
    fn block(&mut self, block: &Block) -> Result<(), Diagnostic> {
        for statement in block {
            match &statement.kind {
                StatementKind::Repeat { count, body } => self.repeat(*count, body, statement.span)?,
                StatementKind::Time { body, .. } => self.block(body)?,
                _ => {
                    self.emitter.statement(statement)?;
                }
            }
        }
        Ok(())
    }

    fn repeat(&mut self, count: u64, body: &Block, span: Span) -> Result<(), Diagnostic> {
        for round in 0..count {
            let before = self.emitter.list().len();
            if round > 0 && before >= MAX_UNROLLED {
                // An inner `repeat` comes by in every round of its outer one: say it once.
                if self.notes.iter().all(|(noted, _)| *noted != span) {
                    self.notes.push((span, format!("{round} of {count} rounds are planned")));
                }
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

//! Checks a whole script before any statement runs.
//!
//! The checker emits every statement once, on tensors without values, into a list that it drops: whatever the builder would
//! refuse at run time is refused now. The body of a `repeat` is checked once, which is enough because a name must keep its dtype,
//! shape and place over the rounds. The blocks of a `while` and of an `if` are checked once, whatever their conditions will be.
//!
//! A program is recorded where it is defined, and each `run` emits its statements, as `streamvm run` does without `--compiled`.
//!
//! The checker counts the same streams as an engine: those of the instructions, those that staging adds for copies between the
//! host and a device that does not reach its memory, and the one that reads values back.

use std::collections::HashSet;
use std::sync::Arc;

use crate::base::engine::{Capabilities, InstructionList, MAX_STREAMS, Step, StreamKey, scope};
use crate::emit::devices::Devices;
use crate::emit::programs::{Defined, MAX_ALL_STEPS};
use crate::emit::{Emitter, HeadersOnly, READ_BACK, Wanted, rounds};
use crate::syntax::ast::{Block, RunCall, Statement, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Source, Spanned};

/// Checks a script.
///
/// # Errors
/// A message for every wrong statement. A statement that is wrong only because it uses a name of a wrong `let` gets none.
pub fn check(source: &Source, script: &Block, devices: &Devices) -> Result<(), Vec<Diagnostic>> {
    checked(source, script, devices).map(drop)
}

/// Checks a script, and gives its programs, in the order of the script.
///
/// # Errors
/// Those of [`check`].
pub(crate) fn checked(
    source: &Source,
    script: &Block,
    devices: &Devices,
) -> Result<Vec<Arc<Defined>>, Vec<Diagnostic>> {
    let emitter = Emitter::new(source, devices, HeadersOnly::with_elements());
    let mut checker =
        Checker { emitter, streams: HashSet::new(), errors: Vec::new(), run_steps: 0, programs: Vec::new() };
    checker.block(script, true);
    if checker.errors.is_empty() { Ok(checker.programs) } else { Err(checker.errors) }
}

struct Checker<'a> {
    emitter: Emitter<'a>,
    /// The streams found so far, at most one more than an engine may have.
    streams: HashSet<StreamKey>,
    errors: Vec<Diagnostic>,
    /// The weights of all runs so far, each statement counted once.
    run_steps: usize,
    programs: Vec<Arc<Defined>>,
}

impl Checker<'_> {
    fn block(&mut self, block: &Block, top: bool) {
        for statement in block {
            self.statement(statement, top);
            // Only the types and streams matter to a check, so the list is dropped: the instructions of a long script would cost memory.
            let list = self.emitter.take_list();
            self.count_streams(list, statement);
        }
    }

    /// Notes the streams of the instructions that a statement has emitted. The first stream over the limit is reported, once.
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
            StatementKind::Program(program) if !top => self.errors.push(
                Diagnostic::new(program.name.span, "a program is defined outside of blocks")
                    .with_help("move it in front of the block"),
            ),
            StatementKind::Program(program) => match self.emitter.define(program) {
                Ok(()) => self.programs.extend(self.emitter.program(&program.name)),
                Err(errors) => self.errors.extend(errors),
            },
            StatementKind::Run(run) => {
                if let Err(error) = self.run(run, statement) {
                    run.names.iter().for_each(|name| self.emitter.poison(name));
                    if !error.echo {
                        self.errors.push(error);
                    }
                }
            }
            StatementKind::Repeat { body, .. } => self.repeat(body),
            StatementKind::While { condition, body } => {
                self.condition(condition, statement);
                self.inner(body);
            }
            StatementKind::If { condition, then, otherwise } => {
                self.condition(condition, statement);
                self.inner(then);
                self.inner(otherwise);
            }
            StatementKind::IfRank { then, otherwise, .. } => {
                self.runs_of_one_rank(then);
                self.runs_of_one_rank(otherwise);
                self.inner(then);
                self.inner(otherwise);
            }
            StatementKind::Time { body, .. } => self.block(body, false),
            StatementKind::Scope { name, body } => {
                let _scope = scope(name);
                self.block(body, false);
            }
            StatementKind::Save { path, .. } if !path.value.ends_with(".npy") => {
                let help = "write `save y \"y.npy\"`; the library saves .npz and .safetensors, too";
                let error = Diagnostic::new(path.span, "only .npy files can be saved, expected a name with .npy");
                self.errors.push(error.with_help(help));
            }
            _ => match self.emitter.statement(statement) {
                Ok(Wanted::Nothing) => {}
                Ok(Wanted::One(_) | Wanted::Two(..)) => self.note_stream(READ_BACK, statement),
                Err(error) => {
                    // One message per mistake: the name of a wrong `let` is marked as poisoned, so that its uses are not reported as
                    // unknown names.
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

    /// Checks a condition. The script reads it, which takes a stream.
    fn condition(&mut self, condition: &Spanned<String>, statement: &Statement) {
        match self.emitter.read_condition(condition) {
            Ok(_) => self.note_stream(READ_BACK, statement),
            Err(error) if error.echo => {}
            Err(error) => self.errors.push(error),
        }
    }

    /// Checks that no program with collectives runs in a block that is for some ranks alone.
    fn runs_of_one_rank(&mut self, block: &Block) {
        for statement in block {
            match &statement.kind {
                StatementKind::Run(run) => {
                    let program = self.emitter.program(&run.program).ok();
                    if program.is_some_and(|it| it.program.steps.iter().any(Step::is_collective)) {
                        let why = "this program has collectives, for which the other ranks would wait";
                        let error = Diagnostic::new(run.program.span, why);
                        self.errors.push(error.with_help("put the `run` before the `if rank` or after it"));
                    }
                }
                StatementKind::Repeat { body, .. }
                | StatementKind::While { body, .. }
                | StatementKind::Time { body, .. }
                | StatementKind::Scope { body, .. } => self.runs_of_one_rank(body),
                StatementKind::If { then, otherwise, .. } => {
                    self.runs_of_one_rank(then);
                    self.runs_of_one_rank(otherwise);
                }
                _ => {}
            }
        }
    }

    /// Checks the block of a `while` or an `if`.
    fn inner(&mut self, block: &Block) {
        // The list has the copy of the condition.
        let list = self.emitter.take_list();
        if let Some(first) = block.first() {
            self.count_streams(list, first);
        }
        self.emitter.begin_block();
        self.block(block, false);
        self.emitter.end_block();
    }

    fn repeat(&mut self, body: &Block) {
        let before = self.emitter.names().clone();
        let errors = self.errors.len();
        self.block(body, false);
        if self.errors.len() > errors {
            return; // what the names stand for is not certain
        }
        self.errors.extend(rounds::changed(&before, self.emitter.names()));
    }

    /// Emits the statements of a program for one run.
    fn run(&mut self, run: &RunCall, statement: &Statement) -> Result<(), Diagnostic> {
        // The weight of a program counts the programs that it runs.
        let is_inner = self.emitter.is_in_program();
        let program = self.emitter.enter(run)?;
        self.run_steps = self.run_steps.saturating_add(if is_inner { 0 } else { program.weight });
        if self.run_steps > MAX_ALL_STEPS {
            self.emitter.leave_without_results();
            let message = format!("the `run` statements up to here have more than {MAX_ALL_STEPS} steps together");
            return Err(Diagnostic::new(statement.span, message).with_help("put a `run` into a `repeat`"));
        }
        self.block(&program.block.body, false);
        self.emitter.leave(run, &program)
    }
}

//! `streamvm run`: submits the instructions of a script, and prints, saves and compares its results.
//!
//! Instructions gather in one list, which is submitted when a statement needs a value, when the list has [`FLUSH_AT`] instructions
//! or writes `FLUSH_BYTES` bytes, and at the end. Submitting does not wait, so copies of later lists overlap with the
//! computations of earlier ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Instant;

use streamvm_files::{Array, Data, TensorFile};
use streamvm_ranks::Group;

use crate::base::engine::{
    Access, Cause, CompileOptions, DeviceError, Error, Executable, InstructionList, Place, Site, Tensor, Vm, scope,
};
use crate::base::printable::{printable, without_controls};
use crate::emit::devices::Devices;
use crate::emit::{Emitter, Loader, Wanted};
use crate::execute::dump::Dump;
use crate::files::place::resolve;
use crate::files::save;
use crate::syntax::ast::{Block, Expr, Statement, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Source, Span, Spanned};
use crate::values::compare::{accuracy, compare};

/// A list of this many instructions is submitted even if no statement needs a value yet: few enough that the streams do not wait
/// for the script, and enough to spread the fixed cost of a submission.
pub const FLUSH_AT: usize = 64;

/// A list whose instructions write this many bytes is submitted. So a statement that asks for more memory than there is fails by
/// itself, and its memory counts as used before the next statement asks. Moving 1 MiB takes far longer than a submission.
const FLUSH_BYTES: usize = 1 << 20;

/// What to do about a `while` that does not end.
const MORE_ROUNDS: &str = "does the block write the condition? `--most-rounds` allows more rounds";

/// Options of the engine that its messages name, with the help on those of the command.
const OPTIONS: [(&str, &str); 2] = [
    ("`most_rounds`", MORE_ROUNDS),
    ("`check_finite`", "make the inputs results of the program and print them, or run without `--check-finite`"),
];

/// Why a run stopped.
#[derive(Debug)]
pub enum Stop {
    /// A statement failed.
    Statement(Diagnostic),
    /// The output could not be written.
    Output(io::Error),
}

impl From<Diagnostic> for Stop {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Statement(diagnostic)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// The engine that runs a script, and the limits and observers of the run.
#[derive(Clone, Copy, Debug)]
pub struct Engine<'a> {
    /// The engine.
    pub vm: &'a Vm,
    /// Most bytes of a tensor on the host, if known: a larger file is refused before it is read.
    pub memory: Option<u64>,
    /// How each program is compiled, so that a `run` is a few instructions. `None`: a `run` emits the statements of the program.
    pub compiled: Option<&'a CompileOptions>,
    /// How many rounds the `while` loops of one run of a program may make together, and those outside of programs; `None` for the default
    /// of the compiler.
    pub most_rounds: Option<u64>,
    /// The ranks of the job, for a script with collectives.
    pub world: Option<&'a Group>,
    /// Where the compiled programs are kept, with the times of their steps, if these are wanted.
    pub(crate) timed: Option<&'a Mutex<Vec<Executable>>>,
    /// For a dry run, which writes no file: it keeps saved tensors in memory for later loads, and runs at most the rounds that
    /// [`MAX_DRY`] allows.
    pub(crate) dry: Option<&'a DryRun>,
}

impl<'a> Engine<'a> {
    /// An engine without limits and observers, which emits the statements of programs.
    pub fn new(vm: &'a Vm) -> Engine<'a> {
        Engine { vm, memory: None, compiled: None, most_rounds: None, world: None, timed: None, dry: None }
    }
}

/// A dry run begins another round of a `repeat` only while it has run fewer instructions than this: races show in the first rounds,
/// and this many instructions take a second or two on simulated devices.
pub const MAX_DRY: u64 = 10_000;

/// What a dry run has left out: a place and a sentence for each `repeat` of which rounds are missing.
#[derive(Debug, Default)]
pub(crate) struct DryRun {
    left_out: RefCell<Vec<(Span, String)>>,
}

impl DryRun {
    /// `ran` says how many rounds ran.
    fn leave_out(&self, span: Span, ran: &str) {
        let mut left_out = self.left_out.borrow_mut();
        // Every round of an outer `repeat` reaches its inner `repeat` again: note the inner one only once.
        if left_out.iter().all(|(noted, _)| *noted != span) {
            left_out.push((span, format!("{ran}, as the run has more than {MAX_DRY} instructions")));
        }
    }

    /// Were rounds left out, so that values may differ from those of a whole run?
    pub(crate) fn has_left_out(&self) -> bool {
        !self.left_out.borrow().is_empty()
    }

    pub(crate) fn into_left_out(self) -> Vec<(Span, String)> {
        self.left_out.into_inner()
    }
}

/// The tensors that a dry run has kept instead of saving them, by resolved path.
type Unwritten = Rc<RefCell<HashMap<PathBuf, Array>>>;

/// Runs a script that [`check`](crate::analysis::check::check) has accepted. Results go to `out`, and each submitted list goes to
/// `dump`. Blocks until all instructions have passed.
///
/// # Errors
/// The first statement that fails, or at which the failure of an earlier instruction is noticed.
pub fn run(
    engine: Engine<'_>,
    source: &Source,
    script: &Block,
    devices: &Devices,
    out: &mut dyn Write,
    dump: Option<&mut Dump>,
) -> Result<(), Stop> {
    let unwritten = Unwritten::default();
    let emitter = Emitter::new(source, devices, FromFiles { engine, unwritten: unwritten.clone() });
    let emitter = emitter.over(engine.world.cloned());
    let mut runner = Runner {
        vm: engine.vm,
        dry: engine.dry.map(|dry| (dry, unwritten)),
        compile_options: engine.compiled,
        executables: HashMap::new(),
        timed: engine.timed,
        most_rounds: engine.most_rounds.unwrap_or(CompileOptions::default().most_rounds),
        rounds: 0,
        added: 0,
        source,
        emitter,
        out,
        dump,
        within: None,
        gathered_since: Span::default(),
        gathered_bytes: 0,
    };
    runner.block(script)?;
    let end = Span::new(source.text().len(), source.text().len());
    runner.settle(end)
}

/// Loads files into host tensors.
struct FromFiles<'a> {
    engine: Engine<'a>,
    unwritten: Unwritten,
}

impl FromFiles<'_> {
    fn tensor(&self, array: &Array) -> Result<Tensor, String> {
        array.to_tensor(self.engine.vm).map_err(|error| error.to_string())
    }
}

impl Loader for FromFiles<'_> {
    fn load(&mut self, path: &Path, name: Option<&str>) -> Result<Tensor, String> {
        let unwritten = self.unwritten.borrow();
        if let Some(array) = if unwritten.is_empty() { None } else { unwritten.get(&resolve(path)) } {
            return self.tensor(array);
        }
        let file = TensorFile::open(path, name).map_err(|error| error.to_string())?;
        if let Some(limit) = self.engine.memory.filter(|limit| file.bytes() as u64 > *limit) {
            let bytes = file.bytes();
            let path = path.display();
            return Err(format!(
                "{path}: the tensor has {bytes} bytes, more than the limit of memory, {limit}; `--memory-limit` sets another"
            ));
        }
        let array = file.read().map_err(|error| error.to_string())?;
        log::info!("loaded {}{} from {}", file.dtype, file.shape, printable(&file.path.display().to_string()));
        self.tensor(&array)
    }

    /// When a load runs, the saves before it have already run, so there is nothing to remember.
    fn will_be_saved(&mut self, _path: &Path, _tensor: &Tensor) {}
}

/// Walks a script, and submits what it emits.
pub(super) struct Runner<'a> {
    pub(super) vm: &'a Vm,
    /// The dry run and the tensors that it has kept instead of saving them, if this is a dry run.
    dry: Option<(&'a DryRun, Unwritten)>,
    /// How programs are compiled, if they are.
    pub(super) compile_options: Option<&'a CompileOptions>,
    /// The compiled programs by name.
    pub(super) executables: HashMap<String, Executable>,
    /// Where the compiled programs are kept, with the times of their steps, if these are wanted.
    pub(super) timed: Option<&'a Mutex<Vec<Executable>>>,
    /// How many rounds the `while` loops of one run of a program may make together, and those outside of programs.
    pub(super) most_rounds: u64,
    /// How many they have made: those of the current `run`, or those outside of programs.
    pub(super) rounds: u64,
    /// Number of instructions emitted so far.
    pub(super) added: u64,
    pub(super) source: &'a Source,
    pub(super) emitter: Emitter<'a>,
    out: &'a mut dyn Write,
    pub(super) dump: Option<&'a mut Dump>,
    /// The site of the `run` whose statements are emitted.
    pub(super) within: Option<Site>,
    /// The statement of the first instruction that is not submitted yet.
    gathered_since: Span,
    /// The bytes that the instructions write that are not submitted yet.
    gathered_bytes: usize,
}

/// The bytes that the instructions of a list write, from index `first` on.
fn bytes_written(list: &InstructionList, first: usize) -> usize {
    let written = list.instructions()[first..].iter().flat_map(|instruction| list.uses(instruction));
    written
        .filter(|used| used.access() != Access::Read)
        .filter_map(|used| used.as_tensor())
        .map(|tensor| tensor.shape().elements() * tensor.dtype().size())
        .fold(0, usize::saturating_add)
}

impl Runner<'_> {
    pub(super) fn block(&mut self, block: &Block) -> Result<(), Stop> {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), Stop> {
        if log::log_enabled!(log::Level::Info) {
            let line = self.source.position(statement.span.start).line;
            log::info!("{}:{line}: {}", self.source.name(), printable(self.source.snippet(statement.span)));
        }
        match &statement.kind {
            StatementKind::PrintText(text) => return Ok(writeln!(self.out, "{}", without_controls(text))?),
            StatementKind::Repeat { count, body } => return self.repeat(*count, body, statement.span),
            StatementKind::While { condition, body } => return self.while_true(condition, body, statement.span),
            StatementKind::If { condition, then, otherwise } => {
                let block = if self.holds(condition, statement.span)? { then } else { otherwise };
                return self.inner(block);
            }
            // The block of other ranks is empty (`leave_to_others`).
            StatementKind::IfRank { then, otherwise, .. } => {
                self.inner(then)?;
                return self.inner(otherwise);
            }
            StatementKind::Time { label, body } => {
                self.settle(statement.span)?;
                let start = Instant::now();
                self.block(body)?;
                self.settle(statement.span)?;
                let took = start.elapsed().as_secs_f64() * 1e3;
                return Ok(writeln!(self.out, "time {}: {took:.3} ms", without_controls(label))?);
            }
            StatementKind::Scope { name, body } => {
                let _scope = scope(name);
                return self.block(body);
            }
            StatementKind::Program(program) => return self.define(program),
            StatementKind::Run(run) if self.compile_options.is_some() => {
                return self.run_executable(run, statement.span);
            }
            StatementKind::Run(run) => return self.run_statements(run, statement.span),
            _ => {}
        }
        match self.emit(statement.span, |emitter| emitter.statement(statement))? {
            Wanted::Nothing => self.flush_if_full(statement.span),
            Wanted::One(tensor) => {
                let array = self.read(&tensor, statement.span)?;
                self.one(statement, &array)
            }
            Wanted::Two(first, second) => {
                let first = self.read(&first, statement.span)?;
                let second = self.read(&second, statement.span)?;
                self.two(statement, &first, &second)
            }
        }
    }

    /// Emits the instructions of the statement at `span`.
    pub(super) fn emit<R>(
        &mut self,
        span: Span,
        emit: impl FnOnce(&mut Emitter<'_>) -> Result<R, Diagnostic>,
    ) -> Result<R, Diagnostic> {
        let _scope = self.source.site(span, self.within).enter();
        let before = self.emitter.list().len();
        let result = emit(&mut self.emitter)?;
        let list = self.emitter.list();
        self.added += (list.len() - before) as u64;
        if before == 0 {
            self.gathered_since = span;
        }
        self.gathered_bytes += bytes_written(list, before);
        Ok(result)
    }

    pub(super) fn flush_if_full(&mut self, span: Span) -> Result<(), Stop> {
        if self.emitter.list().len() >= FLUSH_AT || self.gathered_bytes >= FLUSH_BYTES {
            self.flush(span)?;
        }
        Ok(())
    }

    fn repeat(&mut self, count: u64, body: &Block, span: Span) -> Result<(), Stop> {
        for round in 0..count {
            let before = self.added;
            if let Some((dry, _)) = &self.dry
                && round > 0
                && before >= MAX_DRY
            {
                dry.leave_out(span, &format!("{round} of {count} rounds ran"));
                break;
            }
            self.block(body)?;
            if self.dry.is_some() && self.added == before {
                break; // rounds that add nothing now add nothing later
            }
        }
        Ok(())
    }

    /// Reads a condition, which waits for it.
    fn holds(&mut self, condition: &Spanned<String>, span: Span) -> Result<bool, Stop> {
        let tensor = self.emit(span, |emitter| emitter.read_condition(condition))?;
        let array = self.read(&tensor, span)?;
        Ok(matches!(array.data, Data::Bool(values) if values == [true]))
    }

    /// Runs the block of a `while` or an `if`.
    fn inner(&mut self, block: &Block) -> Result<(), Stop> {
        self.emitter.begin_block();
        self.block(block)?;
        self.emitter.end_block();
        Ok(())
    }

    fn while_true(&mut self, condition: &Spanned<String>, body: &Block, span: Span) -> Result<(), Stop> {
        let mut round = 0;
        while self.holds(condition, span)? {
            if let Some((dry, _)) = &self.dry
                && round > 0
                && self.added >= MAX_DRY
            {
                dry.leave_out(span, &format!("{round} rounds ran"));
                break;
            }
            if self.rounds == self.most_rounds {
                let most = self.most_rounds;
                let loops =
                    if self.within.is_some() { "all loops of the run" } else { "all loops outside of programs" };
                let name = &condition.value;
                let message = format!(
                    "the condition `{name}` of this while is still true after {most} rounds of {loops}, the most that they may make"
                );
                return Err(Diagnostic::new(span, message).with_help(MORE_ROUNDS).into());
            }
            self.rounds += 1;
            round += 1;
            self.inner(body)?;
        }
        Ok(())
    }

    fn one(&mut self, statement: &Statement, array: &Array) -> Result<(), Stop> {
        match &statement.kind {
            StatementKind::Save { path, .. } => {
                let target = self.source.resolve(&path.value);
                if let Some((_, unwritten)) = &self.dry {
                    unwritten.borrow_mut().insert(resolve(&target), array.clone());
                    return Ok(());
                }
                save(&target, array).map_err(|error| Diagnostic::new(path.span, error.to_string()))?;
                log::info!("saved {}", printable(&target.display().to_string()));
                Ok(())
            }
            StatementKind::Print(value) => {
                let sizes: Vec<String> = array.shape.iter().map(ToString::to_string).collect();
                let head = format!("{}: {}[{}]", self.label(value), array.data.dtype(), sizes.join(","));
                let values = array.show();
                let separator = if values.contains('\n') { '\n' } else { ' ' };
                Ok(writeln!(self.out, "{head}{separator}{values}")?)
            }
            _ => Ok(()),
        }
    }

    fn two(&mut self, statement: &Statement, first: &Array, second: &Array) -> Result<(), Stop> {
        match &statement.kind {
            StatementKind::PrintAccuracy { scores, .. } => {
                let (right, rows) = accuracy(first, second);
                let share = right as f64 / rows.max(1) as f64;
                let label = self.label(scores);
                Ok(writeln!(self.out, "accuracy of {label}: {share:.4} ({right} of {rows})")?)
            }
            // Rounds were left out, so the values need not be the expected ones.
            StatementKind::Expect { .. } if self.dry.as_ref().is_some_and(|(dry, _)| dry.has_left_out()) => Ok(()),
            StatementKind::Expect { tolerance, .. } => compare(first, second, *tolerance)
                .map_err(|mismatch| Diagnostic::new(statement.span, format!("not as expected: {mismatch}")).into()),
            _ => Ok(()),
        }
    }

    /// The text of an expression, printed as the name of its value.
    fn label(&self, expr: &Expr) -> String {
        printable(self.source.snippet(expr.span))
    }

    /// Submits the gathered instructions without waiting for them.
    pub(super) fn flush(&mut self, span: Span) -> Result<(), Stop> {
        let list = self.emitter.take_list();
        if list.is_empty() {
            return Ok(());
        }
        if let Some(dump) = &mut self.dump {
            dump.next(&list)?;
        }
        log::debug!("submitting {} instructions", list.len());
        self.gathered_bytes = 0;
        self.vm.submit(list).map(drop).map_err(|error| {
            let since = self.source.position(self.gathered_since.start).line;
            let together = (self.gathered_since != span)
                .then(|| format!("what gathered from line {since} on was submitted together, and none of it ran"));
            self.explain(&error, span).with_help_if(together).into()
        })
    }

    /// Submits the gathered instructions and waits until all have passed.
    fn settle(&mut self, span: Span) -> Result<(), Stop> {
        self.flush(span)?;
        let _scope = self.source.site(span, self.within).enter();
        self.vm.wait_all().map_err(|error| self.explain(&error, span))?;
        Ok(())
    }

    /// The values of a host tensor; submits the gathered instructions and waits for those that compute it.
    fn read(&mut self, tensor: &Tensor, span: Span) -> Result<Array, Stop> {
        debug_assert_eq!(tensor.place(), Place::Host);
        self.flush(span)?;
        self.added += 1;
        let _scope = self.source.site(span, self.within).enter();
        Array::from_tensor(tensor).map_err(|error| self.explain(&error, span).into())
    }

    /// Turns an error of the engine into a message about the statement that caused it; `noticed` is the statement at which the engine
    /// reported it.
    pub(super) fn explain(&self, error: &Error, noticed: Span) -> Diagnostic {
        let failure = match error {
            Error::Failed(failure) => failure,
            Error::OutOfMemory { source, site, .. } => {
                let limited = matches!(**source, DeviceError::OutOfMemory { limit: Some(_), .. });
                let diagnostic = Diagnostic::new(self.source.span_of(*site).unwrap_or(noticed), source.to_string())
                    .in_scope(scope_of(*site));
                return diagnostic.with_help(if limited {
                    "raise the limit (`--memory-limit`; without it, the memory of the machine), or work in smaller parts"
                } else {
                    "work in smaller parts; other programs may hold memory too"
                });
            }
            other => return Diagnostic::new(noticed, other.without_call()),
        };
        // The statement that failed, and the `run` that led there, if it is one of a program.
        let (cause, site, run) = match &failure.cause {
            Cause::Step { step, error } => (error.clone(), step.site, Some(failure.site)),
            cause => (cause.to_string(), failure.site, failure.site.within()),
        };
        // A step of a compiled program has the scopes of its block, and its run those around the run.
        let scopes = [(failure.site != site).then_some(failure.site), Some(site)].map(|site| site.and_then(scope_of));
        let scopes: Vec<String> = scopes.into_iter().flatten().collect();
        let scope = match scopes.is_empty() {
            true => String::new(),
            false => format!(", in {}", printable(&scopes.join(" > "))),
        };
        let message = format!("{cause} (on {}{scope})", failure.stream);
        let Some(span) = self.source.span_of(site) else {
            return Diagnostic::new(noticed, format!("an earlier statement failed: {message}")).in_scope(None);
        };
        // The engine names its own options.
        let option = OPTIONS.iter().find(|(option, _)| message.contains(option)).map(|(_, help)| (*help).to_owned());
        let run = run.and_then(|run| self.source.span_of(run));
        let line =
            |span: Span| format!("line {}: {}", self.source.position(span.start).line, self.source.snippet(span));
        let diagnostic = Diagnostic::new(span, message)
            .in_scope(None)
            .with_help_if(option)
            .with_help_if(run.map(|run| format!("run by {}", line(run))));
        if span == noticed || run == Some(noticed) {
            return diagnostic;
        }
        diagnostic.with_help_if(Some(if self.source.snippet(noticed).is_empty() {
            "noticed at the end of the script".to_owned()
        } else {
            format!("noticed in {}", line(noticed))
        }))
    }
}

fn scope_of(site: Site) -> Option<String> {
    site.scope().map(|scope| scope.to_string())
}

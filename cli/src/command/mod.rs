//! Subcommands of `streamvm`: over scripts, traces, buffers, functions and devices, with their outputs and exit codes.
//!
//! Layer: uses all other folders except `values`; is used by the binary.
//!
//! Main types: [`run_script`], [`check_script`], [`compile_programs`](compile::compile_programs), [`list_devices`],
//! [`list_functions`](functions::list_functions), [`verify_trace`](verify::verify_trace), [`report_trace`](report_trace::report_trace), [`inspect_trace`](inspect::inspect_trace), [`launch`](launch::launch) and [`plan_memory`](plan_memory::plan_memory) do the work of one subcommand each;
//! [`ScriptOptions`] are the options of the subcommands over scripts, and [`Exit`] is how the command ended.
//!
//! No function here prints by itself: results go to the writer given for stdout, messages to the writer given for stderr, so that
//! the binary and the tests run the same code.

pub mod compile;
mod exit;
pub mod functions;
pub mod inspect;
pub mod interrupt;
pub mod launch;
mod list_graph;
mod memory_picture;
mod outputs;
pub mod own_stack;
pub mod plan_memory;
mod program_report;
mod progress;
pub mod report;
pub mod report_trace;
mod script_options;
pub mod verify;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use streamvm_ranks::Ranks;

pub use exit::{Exit, written};
pub use script_options::ScriptOptions;

use crate::analysis::aliases::{check_options, check_saves};
use crate::analysis::check::{check, checked};
use crate::analysis::compiled::check_compiled;
use crate::analysis::plan::{Plan, plan};
use crate::base::engine::{DeviceId, DeviceKind, Executable, Mode, TraceConfig, Vm, VmBuilder};
use crate::base::printable::printable;
use crate::command::outputs::{Outputs, Parts, cannot_dump};
use crate::command::program_report::times;
use crate::command::report::{StreamRow, device_table, devices_json, stream_table};
use crate::command::report_trace::{KeptTrace, both};
use crate::emit::devices::{Available, Devices};
use crate::execute::dump::Dump;
use crate::execute::engine_options::EngineOptions;
use crate::execute::races;
use crate::execute::run::{Engine, Stop, run};
use crate::files::output::{OutputFile, end_unfinished};
use crate::syntax::ast::{Block, has_collectives, leave_to_others};
use crate::syntax::diagnostic::{Diagnostic, render_all};
use crate::syntax::lexer::{TokenKind, tokenize};
use crate::syntax::parser::parse;
use crate::syntax::source::{ReadError, Source, Span};

/// Reads, parses and checks a script and resolves its devices, for both subcommands over scripts.
fn prepare(
    options: &ScriptOptions,
    engine: &EngineOptions,
    planning: bool,
    err: &mut dyn Write,
) -> io::Result<Option<(Source, Block, Devices)>> {
    let source = match Source::read(&options.file) {
        Ok(mut source) => match Ranks::of_environment() {
            Ok(numbers) => {
                numbers.into_iter().for_each(|(rank, size)| source.set_rank(rank, size));
                source
            }
            Err(error) => {
                writeln!(err, "error: {error}")?;
                return Ok(None);
            }
        },
        Err(ReadError::File(message)) => {
            writeln!(err, "{message}")?;
            return Ok(None);
        }
        Err(ReadError::Text(failure)) => {
            let (source, diagnostic) = *failure;
            write!(err, "{}", diagnostic.render(&source))?;
            return Ok(None);
        }
    };
    let checked = parse(&source).and_then(|mut script| {
        if !planning {
            leave_to_others(&mut script, source.rank());
        }
        let chosen = options.devices.clone();
        // CUDA is looked for only if the script or an option names it, since a driver is slow to start.
        let cuda = names_cuda(&source) || chosen.iter().any(|(_, device)| device.kind == DeviceKind::CUDA);
        let devices = Devices::resolve(&script, Available { chosen, planning, ..there(engine, cuda) })?;
        let programs = checked(&source, &script, &devices)?;
        if let Some(options) = options.compile_options() {
            check_compiled(&programs, &options, &source)?;
        }
        check_saves(&source, &options.file, &script)?;
        Ok((script, devices))
    });
    match checked {
        Ok((script, devices)) => match check_options(&source, &options.file, &script, &options.outputs()) {
            Ok(()) => Ok(Some((source, script, devices))),
            Err(message) => {
                writeln!(err, "{message}")?;
                Ok(None)
            }
        },
        Err(errors) => {
            write!(err, "{}", render_all(&errors, &source))?;
            Ok(None)
        }
    }
}

/// `streamvm run FILE`
///
/// # Errors
/// Only if `err` cannot be written.
pub fn run_script(
    options: &ScriptOptions,
    engine: &EngineOptions,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let Some((source, script, devices)) = prepare(options, engine, false, err)? else {
        return Ok(Exit::Rejected);
    };
    let ranks = match has_collectives(&script).then(Ranks::start).transpose() {
        Ok(ranks) => ranks,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(Exit::Failed);
        }
    };
    let (mut outputs, writers) = match Outputs::begin(options) {
        Ok(begun) => begun,
        Err(message) => {
            writeln!(err, "{message}")?;
            return Ok(Exit::Failed);
        }
    };
    let kept = options.report.then(KeptTrace::begin).transpose();
    let (kept, kept_trace) = match kept {
        Ok(kept) => kept.unzip(),
        Err(error) => {
            writeln!(err, "error: no file for the trace that --report needs can be made: {error}")?;
            return Ok(Exit::Failed);
        }
    };
    let watching = |builder: VmBuilder| {
        let builder = builder.profile(options.profile || options.profile_json.is_some());
        let builder = match writers.record {
            Some(writer) => builder.record(writer),
            None => builder,
        };
        if let (Some(path), Some(last)) = (writers.last, options.trace_last) {
            return builder.trace(TraceConfig::to_file(path).last(last));
        }
        match both(writers.trace, kept_trace) {
            Some(writer) => builder.trace(TraceConfig::to_writer(writer)),
            None => builder,
        }
    };
    let vm = match engine.build(watching) {
        Ok(vm) => vm,
        Err(error) => {
            writeln!(err, "error: the engine cannot be started: {error}")?;
            return Ok(Exit::Failed);
        }
    };
    let timed = Timed::default();
    let vm = Arc::new(vm);
    let parts = match outputs.parts() {
        Ok(parts) => parts,
        Err(message) => {
            writeln!(err, "{message}")?;
            return Ok(Exit::Failed);
        }
    };
    let armed = {
        let (options, name) = (options.clone(), source.name().to_owned());
        let (vm, timed) = (Arc::downgrade(&vm), timed.clone());
        interrupt::arm(move |signal| tell_parts(&options, &name, &vm, &timed, parts, signal))
    };
    let progress = options.progress.then(|| progress::begin(Arc::downgrade(&vm))).transpose();
    if let Err(error) = &progress {
        writeln!(err, "no progress is told: no thread could be started: {error}")?;
    }
    let compile_options = options.compile_options();
    let here = Engine {
        memory: engine.memory(),
        compiled: compile_options.as_ref(),
        timed: options.profile.then_some(&*timed),
        most_rounds: options.most_rounds,
        world: ranks.as_ref().map(Ranks::world),
        ..Engine::new(&vm)
    };
    let mut result = run(here, &source, &script, &devices, out, outputs.dump.as_mut());
    if !matches!(result, Err(Stop::Output(_))) {
        let written = print_diagnostics(options, &vm, &timed, out).map_err(Stop::Output);
        result = result.and(written);
    }
    timed.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let profile = vm.profile().unwrap_or_default();
    drop(progress);
    let last = options.trace_last.map_or(Ok(()), |_| outputs.last_is_written(vm.write_trace()));
    // The trace is complete only once the engine is dropped.
    drop(vm);
    drop(armed);
    let report = kept.filter(|_| !matches!(result, Err(Stop::Output(_)))).map(KeptTrace::report).transpose();
    if let Ok(Some(report)) = &report {
        let printed = write!(out, "\n{report}").map_err(Stop::Output);
        result = result.and(printed);
    }
    let exit = finish(result.and_then(|()| out.flush().map_err(Stop::Output)), &source, err);
    // The files are finished even if stderr cannot be written.
    let mut messages = outputs.finish(&profile);
    messages.extend(report.err());
    messages.extend(last.err());
    let exit = exit?;
    // A rank that has failed ends without this, so that the others learn of it.
    if exit == Exit::Fine {
        messages.extend(ranks.and_then(|ranks| ranks.finish().err()).map(|error| format!("error: {error}")));
    }
    messages.iter().try_for_each(|message| writeln!(err, "{message}"))?;
    Ok(if messages.is_empty() { exit } else { Exit::Failed })
}

/// The compiled programs of a run, with the times of their steps.
type Timed = Arc<Mutex<Vec<Executable>>>;

/// Prints the tables that the options ask for.
fn print_diagnostics(options: &ScriptOptions, vm: &Vm, timed: &Timed, out: &mut dyn Write) -> io::Result<()> {
    if options.stats {
        let rows: Vec<StreamRow> = vm.stats().streams.iter().map(StreamRow::from).collect();
        write!(out, "\n{}", stream_table(&rows))?;
    }
    if options.profile {
        write!(out, "\n{}", vm.profile().unwrap_or_default())?;
        let timed = timed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        timed.iter().try_for_each(|executable| write!(out, "\n{}", times(executable)))?;
    }
    Ok(())
}

/// Writes and prints what there is of a run that a signal ends. Whatever cannot be written is left out, since the process ends.
fn tell_parts(options: &ScriptOptions, name: &str, vm: &Weak<Vm>, timed: &Timed, mut parts: Parts, signal: &str) {
    // The run may be in a kernel, for which dropping the engine would wait.
    let vm = vm.upgrade().map(std::mem::ManuallyDrop::new);
    parts.keep_traces();
    if let Some(vm) = vm {
        parts.keep_profile(&vm.profile().unwrap_or_default());
        // After the others, because nothing may read what it goes to.
        if options.trace_last.is_some() && vm.write_trace().is_ok() {
            parts.keep_last();
        }
        // Before what goes to stdout, because nothing may read that.
        for what in end_unfinished() {
            interrupt::tell(&format!("{what} is partial: {name} was interrupted by {signal}"));
        }
        if !(options.stats || options.profile) {
            return;
        }
        let mut out = io::stdout();
        if print_diagnostics(options, &vm, timed, &mut out).and_then(|()| out.flush()).is_ok() {
            interrupt::tell(&format!(
                "{name}: interrupted by {signal}: what was printed last is of the run until then"
            ));
        }
    }
}

fn finish(result: Result<(), Stop>, source: &Source, err: &mut dyn Write) -> io::Result<Exit> {
    match result {
        Ok(()) => Ok(Exit::Fine),
        Err(Stop::Statement(diagnostic)) => {
            write!(err, "{}", diagnostic.render(source))?;
            Ok(Exit::Failed)
        }
        // The reader of the output has closed the pipe, as `head` does, and needs no message.
        Err(Stop::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Failed),
        Err(Stop::Output(error)) => {
            writeln!(err, "{}: error: cannot write the output: {error}", source.name())?;
            Ok(Exit::Failed)
        }
    }
}

/// `streamvm check FILE`
///
/// # Errors
/// Only if `err` cannot be written.
pub fn check_script(
    options: &ScriptOptions,
    engine: &EngineOptions,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let Some((source, script, devices)) = prepare(options, engine, true, err)? else {
        return Ok(Exit::Rejected);
    };
    let plan = match plan(&source, &script, &devices) {
        Ok(plan) => plan,
        Err(diagnostic) => {
            write!(err, "{}", diagnostic.render(&source))?;
            return Ok(Exit::Rejected);
        }
    };
    tell_notes(&plan.notes, &source, err)?;
    let write = |path: &PathBuf| {
        let mut dump = Dump::create(path)?;
        dump.whole(&plan.list)?;
        dump.finish()
    };
    if let Some(path) = &options.dump_ir
        && let Err(error) = write(path)
    {
        writeln!(err, "{}", cannot_dump(path, &error))?;
        return Ok(Exit::Failed);
    }
    if let Some(path) = &options.dot
        && let Err(error) = list_graph::dot(&plan.list).and_then(|graph| {
            let written = OutputFile::create(path).and_then(|output| {
                output.file()?.write_all(graph.as_bytes())?;
                output.finish()
            });
            written.map_err(|error| error.to_string())
        })
    {
        writeln!(err, "{}: error: cannot write the graph: {error}", printable(&path.display().to_string()))?;
        return Ok(Exit::Failed);
    }
    let rows: Vec<StreamRow> = plan.counts.iter().map(StreamRow::from).collect();
    let printed = write!(out, "{}\n{}", plan.list, stream_table(&rows)).map_err(Stop::Output);
    let raced = printed.and_then(|()| {
        if options.races { tell_races(engine, &source, &script, &devices, &plan, out, err) } else { Ok(Exit::Fine) }
    });
    let flushed = raced.and_then(|exit| out.flush().map(|()| exit).map_err(Stop::Output));
    match flushed {
        Ok(exit) => Ok(exit),
        Err(stop) => finish(Err(stop), &source, err),
    }
}

/// Prints what a plan or a dry run has left out, each note with its place in the script.
fn tell_notes(notes: &[(Span, String)], source: &Source, err: &mut dyn Write) -> io::Result<()> {
    notes.iter().try_for_each(|(span, note)| {
        let position = source.position(span.start);
        writeln!(err, "{}:{}:{}: note: {}", source.name(), position.line, position.column, printable(note))
    })
}

/// `--races`: runs the script on simulated devices and prints the races.
fn tell_races(
    engine: &EngineOptions,
    source: &Source,
    script: &Block,
    devices: &Devices,
    plan: &Plan,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<Exit, Stop> {
    let races = races::find(engine, source, script, devices, &plan.list)?;
    tell_notes(&races.notes, source, err)?;
    write!(err, "{}", render_all(&races.found, source))?;
    let count = if races.found.is_empty() { "none".to_owned() } else { races.found.len().to_string() };
    writeln!(out, "\nraces: {count} in {} instructions that ran", races.instructions)?;
    Ok(if races.found.is_empty() { Exit::Fine } else { Exit::Failed })
}

/// Does the text of the script name a CUDA device?
fn names_cuda(source: &Source) -> bool {
    let is_cuda = |token: &TokenKind| match token {
        TokenKind::Device(name) => name.parse().is_ok_and(|device: DeviceId| device.kind == DeviceKind::CUDA),
        _ => false,
    };
    tokenize(source).0.iter().any(|token| is_cuda(&token.kind))
}

/// The devices that a run would find; it looks for CUDA devices only if `cuda` is set. If no engine can be built to ask, the list
/// is empty, and a plan takes the first device that the script names.
fn there(engine: &EngineOptions, cuda: bool) -> Available {
    let options = EngineOptions { mode: Mode::Inline, ..engine.clone() };
    match options.build(|builder| if cuda { builder } else { builder.cuda(None) }.trace(None)) {
        Ok(vm) => Available {
            devices: vm.devices().iter().map(|device| device.id).collect(),
            no_cuda: vm.cuda_absence().filter(|_| cuda).map(|reason| reason.to_string()),
            ..Available::default()
        },
        Err(error) => {
            log::warn!("cannot ask for the devices that are there: {error}");
            Available::default()
        }
    }
}

/// `streamvm devices`
///
/// # Errors
/// Only if `err` cannot be written.
pub fn list_devices(engine: &EngineOptions, json: bool, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    let vm = match (EngineOptions { mode: Mode::Inline, ..engine.clone() }).build(|builder| builder.trace(None)) {
        Ok(vm) => vm,
        Err(error) => {
            writeln!(err, "error: the devices cannot be listed: {error}")?;
            return Ok(Exit::Failed);
        }
    };
    let devices = vm.devices();
    // The JSON array holds only devices, so the reason goes to stderr.
    let text = match vm.cuda_absence() {
        Some(reason) if json => {
            writeln!(err, "no CUDA device: {reason}")?;
            devices_json(&devices)
        }
        Some(reason) => format!("{}\nno CUDA device: {reason}\n", device_table(&devices)),
        None if json => devices_json(&devices),
        None => device_table(&devices),
    };
    Ok(written(write!(out, "{text}").and_then(|()| out.flush()), err)?.unwrap_or(Exit::Fine))
}

/// Checks the text of a script without running it: syntax, names and shapes. For tests and tools.
///
/// # Errors
/// All messages about the script.
pub fn check_text(source: &Source, available: Available) -> Result<(), Vec<Diagnostic>> {
    let script = parse(source)?;
    let devices = Devices::resolve(&script, available)?;
    check(source, &script, &devices)
}

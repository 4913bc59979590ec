//! What `streamvm` does with scripts and devices, with outputs and exit codes.
//!
//! Nothing here prints by itself: results go to the writer given for stdout, messages to the one for
//! stderr, so that the binary and the tests run the same code.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::aliases::{check_options, check_saves};
use crate::ast::Block;
use crate::check::check;
use crate::devices::{Available, Devices};
use crate::diagnostic::{Diagnostic, printable, render_all};
use crate::engine::{CudaConfig, DeviceId, DeviceKind, Mode, Vm, VmBuilder};
use crate::lexer::{TokenKind, tokenize};
use crate::outputs::{Outputs, cannot_dump};
use crate::parser::parse;
use crate::plan::{Plan, plan};
use crate::races;
use crate::report::{StreamRow, device_table, devices_json, stream_table};
use crate::run::{Dump, Engine, Stop, run};
use crate::source::{ReadError, Source, Span};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is well: 0.
    Fine,
    /// The script ran, and something in it failed, or a trace is not in order: 1.
    Failed,
    /// The script was not run, the trace could not be read: 2. Wrong arguments end with the same code.
    Rejected,
}

impl Exit {
    /// The exit code of the process.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Failed => 1,
            Self::Rejected => 2,
        }
    }
}

/// How the engine is set up.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// How instructions run.
    pub mode: Mode,
    /// How many CPU devices there are; nothing means one.
    pub cpu_devices: Option<u32>,
    /// How many simulated devices there are.
    pub sim_devices: u32,
    /// Most bytes of each device, and of the host; nothing means what the machine has.
    pub memory_limit: Option<u64>,
}

impl EngineOptions {
    /// Most bytes of a place.
    pub(crate) fn memory(&self) -> Option<u64> {
        self.memory_limit.or_else(machine_memory)
    }

    /// Builds the engine, with what else it should be.
    pub(crate) fn build(&self, more: impl FnOnce(VmBuilder) -> VmBuilder) -> Result<Vm, String> {
        let mut builder = Vm::builder().mode(self.mode).sim_devices(self.sim_devices);
        if let Some(count) = self.cpu_devices {
            builder = builder.cpu_devices(count);
        }
        if let Some(bytes) = self.memory() {
            builder = builder.cpu_memory_limit(bytes).host_memory_limit(bytes).sim_memory_limit(bytes);
        }
        // A GPU has memory of its own, and refuses what it does not have.
        builder = builder.cuda(Some(CudaConfig { memory_limit: self.memory_limit, ..CudaConfig::default() }));
        more(builder).build().map_err(|error| error.to_string())
    }
}

/// A script and what is asked of it.
#[derive(Clone, Debug, Default)]
pub struct ScriptOptions {
    /// The script.
    pub file: PathBuf,
    /// `--device NAME=DEVICE`.
    pub devices: Vec<(String, DeviceId)>,
    /// Where the instruction lists are written to.
    pub dump_ir: Option<PathBuf>,
    /// Print counts per stream at the end?
    pub stats: bool,
    /// Print what ran and how long that took at the end?
    pub profile: bool,
    /// Where that is written to as JSON.
    pub profile_json: Option<PathBuf>,
    /// Where the trace is written to.
    pub record: Option<PathBuf>,
    /// Run it on simulated devices too and tell what races?
    pub races: bool,
}

impl ScriptOptions {
    /// The options that name a file to write, with their files.
    fn outputs(&self) -> Vec<(&'static str, &Path)> {
        let options =
            [("--dump-ir", &self.dump_ir), ("--record", &self.record), ("--profile-json", &self.profile_json)];
        options.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?))).collect()
    }
}

/// The bytes of memory of this machine, where it says so. Without a limit a script that asks for too much
/// is killed by the system instead of being told.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What both commands over a script share: reading, parsing, devices, checking.
fn prepare(
    options: &ScriptOptions,
    engine: &EngineOptions,
    planning: bool,
    err: &mut dyn Write,
) -> io::Result<Option<(Source, Block, Devices)>> {
    let source = match Source::read(&options.file) {
        Ok(source) => source,
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
    let checked = parse(&source).and_then(|script| {
        let chosen = options.devices.clone();
        // A driver takes its time to start.
        let cuda = names_cuda(&source) || chosen.iter().any(|(_, device)| device.kind == DeviceKind::Cuda);
        let devices = Devices::resolve(&script, Available { chosen, planning, ..there(engine, cuda) })?;
        check(&source, &script, &devices)?;
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
    let (mut outputs, writer) = match Outputs::begin(options, &source) {
        Ok(begun) => begun,
        Err(message) => {
            writeln!(err, "{message}")?;
            return Ok(Exit::Failed);
        }
    };
    let watching = |builder: VmBuilder| {
        let builder = builder.profile(options.profile || options.profile_json.is_some());
        match writer {
            Some(writer) => builder.record(writer),
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
    let sites = outputs.sites();
    let here = Engine { vm: &vm, memory: engine.memory(), sites: sites.as_ref(), dry: None };
    let mut result = run(here, &source, &script, &devices, out, outputs.dump.as_mut());
    if options.stats && !matches!(result, Err(Stop::Output(_))) {
        let rows: Vec<StreamRow> = vm.stats().streams.iter().map(StreamRow::from).collect();
        let written = write!(out, "\n{}", stream_table(&rows)).map_err(Stop::Output);
        result = result.and(written);
    }
    if options.profile && !matches!(result, Err(Stop::Output(_))) {
        let written = write!(out, "\n{}", vm.profile().unwrap_or_default()).map_err(Stop::Output);
        result = result.and(written);
    }
    let profile = vm.profile().unwrap_or_default();
    // The trace ends with the engine.
    drop(vm);
    let exit = finish(result.and_then(|()| out.flush().map_err(Stop::Output)), &source, err);
    // Also where stderr cannot be written.
    let messages = outputs.finish(&profile);
    let exit = exit?;
    messages.iter().try_for_each(|message| writeln!(err, "{message}"))?;
    Ok(if messages.is_empty() { exit } else { Exit::Failed })
}

fn finish(result: Result<(), Stop>, source: &Source, err: &mut dyn Write) -> io::Result<Exit> {
    match result {
        Ok(()) => Ok(Exit::Fine),
        Err(Stop::Statement(diagnostic)) => {
            write!(err, "{}", diagnostic.render(source))?;
            Ok(Exit::Failed)
        }
        // Whoever read the output has left, as `head` does: there is nobody to tell.
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

/// What was left out, at its place.
fn tell_notes(notes: &[(Span, String)], source: &Source, err: &mut dyn Write) -> io::Result<()> {
    notes.iter().try_for_each(|(span, note)| {
        let position = source.position(span.start);
        writeln!(err, "{}:{}:{}: note: {}", source.name(), position.line, position.column, printable(note))
    })
}

/// `--races`
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

/// Is there a CUDA device in the text of a script?
fn names_cuda(source: &Source) -> bool {
    let is_cuda = |token: &TokenKind| match token {
        TokenKind::Device(name) => name.parse().is_ok_and(|device: DeviceId| device.kind == DeviceKind::Cuda),
        _ => false,
    };
    tokenize(source).0.iter().any(|token| is_cuda(&token.kind))
}

/// The devices that a run would find; those of CUDA are looked for where `cuda` says so. Without one to ask, a plan takes the
/// first that the script names.
fn there(engine: &EngineOptions, cuda: bool) -> Available {
    let options = EngineOptions { mode: Mode::Inline, ..engine.clone() };
    match options.build(|builder| if cuda { builder } else { builder.cuda(None) }) {
        Ok(vm) => Available {
            devices: vm.devices().iter().map(|device| device.id).collect(),
            no_cuda: vm.find_cuda().err().filter(|_| cuda).map(|reason| reason.to_string()),
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
    let vm = match (EngineOptions { mode: Mode::Inline, ..engine.clone() }).build(|builder| builder) {
        Ok(vm) => vm,
        Err(error) => {
            writeln!(err, "error: the devices cannot be listed: {error}")?;
            return Ok(Exit::Failed);
        }
    };
    let devices = vm.devices();
    // A JSON array has devices alone, so the reason goes where people look.
    let text = match vm.find_cuda() {
        Err(reason) if json => {
            writeln!(err, "no CUDA device: {reason}")?;
            devices_json(&devices)
        }
        Err(reason) => format!("{}\nno CUDA device: {reason}\n", device_table(&devices)),
        Ok(()) if json => devices_json(&devices),
        Ok(()) => device_table(&devices),
    };
    Ok(written(write!(out, "{text}").and_then(|()| out.flush()), err)?.unwrap_or(Exit::Fine))
}

/// The exit where the output could not be written; that nobody reads it any more is not told.
///
/// # Errors
/// Only if `err` cannot be written.
pub fn written(result: io::Result<()>, err: &mut dyn Write) -> io::Result<Option<Exit>> {
    let Err(error) = result else { return Ok(None) };
    if error.kind() != io::ErrorKind::BrokenPipe {
        writeln!(err, "error: cannot write the output: {error}")?;
    }
    Ok(Some(Exit::Failed))
}

/// Checks a script's text without a file of its own: syntax, names, shapes. For tests and tools.
///
/// # Errors
/// Every message about it.
pub fn check_text(source: &Source, available: Available) -> Result<(), Vec<Diagnostic>> {
    let script = parse(source)?;
    let devices = Devices::resolve(&script, available)?;
    check(source, &script, &devices)
}

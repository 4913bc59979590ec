//! The `streamvm` command: runs, checks and plans scripts, compiles programs, verifies traces, plans memory, and lists functions and devices.
//!
//! This file holds arguments, logging and the exit code; [`streamvm_cli::command`] does the work. Ctrl-C ends the process at once, exit code
//! 130 in a shell, once a run has written what it has of its trace, profile and counts.
#![deny(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use streamvm::ep::DeviceId;
use streamvm::{Error, Mode, VmBuilder};
use streamvm_cli::base::printable::without_controls;
use streamvm_cli::command::compile::{ProgramOptions, Show, compile_programs};
use streamvm_cli::command::functions::list_functions;
use streamvm_cli::command::inspect::{PageTo, inspect_trace};
#[cfg(unix)]
use streamvm_cli::command::interrupt;
use streamvm_cli::command::launch::launch;
use streamvm_cli::command::own_stack::on_own_stack;
use streamvm_cli::command::plan_memory::{PlanOptions, plan_memory};
use streamvm_cli::command::report_trace::report_trace;
use streamvm_cli::command::verify::verify_trace;
use streamvm_cli::command::{Exit, ScriptOptions, check_script, list_devices, run_script, written};
use streamvm_cli::emit::devices::MOST_DEVICES;
use streamvm_cli::execute::engine_options::EngineOptions;

/// An asynchronous execution engine for accelerators: scripts that copy and compute.
///
/// Exit codes: 0 fine, 1 the run failed, the trace is not in order or the buffers do not fit into the capacity, 2 the
/// script, the program, the trace, the buffers or the arguments were rejected.
#[derive(Parser)]
#[command(name = "streamvm", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a script
    Run {
        #[command(flatten)]
        script: ScriptArgs,
        /// How instructions run: threaded (streams side by side, on threads of their own), inline (each to completion
        /// before the next one), or sim:SEED (stepped by one thread, in an order drawn from SEED, with one simulated
        /// device or more)
        /// [default: what the variable STREAMVM_ENGINE of the environment names, else threaded]
        #[arg(long, value_name = "MODE", value_parser = mode)]
        mode: Option<Mode>,
        /// Write what the engine decided to a file that `streamvm verify` judges
        #[arg(long, value_name = "TRACE")]
        record: Option<PathBuf>,
        /// Write when each stream ran what, and what it waited for, for the page ui.perfetto.dev
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
        /// With --trace: only the last SECONDS of the run, which are kept in memory until it ends, also by a signal
        #[arg(long, value_name = "SECONDS", requires = "trace", conflicts_with = "report", value_parser = seconds)]
        trace_last: Option<Duration>,
        /// Compile each program of the script once, and run it as a few instructions: one on each stream that it uses, as a rule
        #[arg(long)]
        compiled: bool,
        /// With --compiled: spread the steps of each program over N lanes of a device where that shortens the estimated time
        /// [default: 1]
        #[arg(long, value_name = "N", requires = "compiled", value_parser = clap::value_parser!(u32).range(1..))]
        lanes: Option<u32>,
        /// With --compiled: fail at the first step that makes an infinity or NaN of finite inputs, and name the element
        #[arg(long, requires = "compiled")]
        check_finite: bool,
        /// How many rounds the `while` loops of one run of a program may make together, and those outside of programs
        /// [default: 10000000]
        #[arg(long, value_name = "N")]
        most_rounds: Option<u64>,
        /// Print how many instructions and syncs ran on each stream
        #[arg(long)]
        stats: bool,
        /// Print each second how far the run is, to stderr; every tenth second after the first ten
        #[arg(long)]
        progress: bool,
        /// Print how often each op, function and step of a compiled program ran and how long it took
        #[arg(long)]
        profile: bool,
        /// Write that to a file, as a JSON array
        #[arg(long, value_name = "FILE")]
        profile_json: Option<PathBuf>,
        /// Print why streams were idle, as `streamvm report` does
        #[arg(long)]
        report: bool,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Build and print the instruction list of a script and count its syncs; run nothing
    Check {
        #[command(flatten)]
        script: ScriptArgs,
        /// Run it too, on simulated devices and without writing files, and tell every access that nothing orders
        #[arg(long)]
        races: bool,
        /// Write the planned instructions and their waits as a graph for Graphviz
        #[arg(long, value_name = "FILE")]
        dot: Option<PathBuf>,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Compile the programs of a script and show the result; needs no device
    Compile {
        /// A script with programs, or a file with the text of one program, as `--show program` prints it; - is stdin
        file: PathBuf,
        /// Compile this program alone
        #[arg(long, value_name = "NAME")]
        program: Option<String>,
        /// Spread the steps over N lanes of a device where that shortens the estimated time [default: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        lanes: Option<u32>,
        /// What to print, as often as wanted: program, its text; passes, what each pass of the compiler did; plan, buffers and
        /// steps; memory, values with their lifetimes and places; picture, the arenas as SVG; edges, which step waits for which,
        /// why and by what; dot, these as a graph for Graphviz [default: plan]
        #[arg(long, value_name = "WHAT", value_parser = show)]
        show: Vec<Show>,
        /// Print a JSON array with an object for each program; for plan, memory and edges
        #[arg(long)]
        json: bool,
        /// Take DEVICE for the device that the script calls NAME
        #[arg(long = "device", value_name = "NAME=DEVICE", value_parser = named_device)]
        devices: Vec<(String, DeviceId)>,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Judge a trace that `run --record` has written: is everything ordered that must be, and which waits could go?
    Verify {
        /// The trace; - is stdin
        trace: PathBuf,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Why were streams idle? How each spent its time, what it waited for, and the critical path, from a trace that `run --trace` has
    /// written; of two, what has changed
    Report {
        /// The trace; - is stdin
        trace: PathBuf,
        /// The trace of another run, to compare with
        after: Option<PathBuf>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        log: LogArgs,
    },
    /// A page of a trace for the browser: why streams were idle, the critical path, and for each instruction its line, what it waited
    /// for and who waited for it
    Inspect {
        /// The trace; - is stdin
        trace: PathBuf,
        /// Write the page to FILE [default: TRACE.html]
        #[arg(long, value_name = "FILE", conflicts_with = "serve")]
        html: Option<PathBuf>,
        /// Serve the page to browsers of this machine; with the default port, its links open the trace in ui.perfetto.dev
        #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "9001")]
        serve: Option<u16>,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Run a command as the ranks of a job on this machine: as many processes, which share memory
    ///
    /// Each process gets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. If one fails, the others are ended.
    Launch {
        /// The number of processes
        #[arg(short, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=64))]
        n: u32,
        /// The command, with its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, num_args = 1..)]
        command: Vec<OsString>,
    },
    /// Place buffers with known lifetimes in as little memory as possible
    PlanMemory {
        /// The buffers, as comma-separated values: the first line names the columns lower, upper and size, and, if they are
        /// there, id and alignment; a buffer lives from lower up to upper. - is stdin
        file: PathBuf,
        /// Stop at the first plan that takes at most SIZE bytes, such as 512M; exit code 1 if none is found
        #[arg(long, value_name = "SIZE", value_parser = size)]
        capacity: Option<u64>,
        /// Look for a better plan for at most SECONDS [default: 10, or none with --steps]
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        budget: Option<Duration>,
        /// Look for a better plan for at most N steps, which gives the same plan on every machine
        #[arg(long, value_name = "N")]
        steps: Option<u64>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        log: LogArgs,
    },
    /// List the functions of the language, with the dtypes that they accept
    Functions {
        /// Print a JSON array, which also says what each op computes, in NumPy too where that is one expression
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        log: LogArgs,
    },
    /// List the devices that are there
    Devices {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        log: LogArgs,
    },
}

#[derive(Args)]
struct ScriptArgs {
    /// The script; paths in it are relative to its folder. - is stdin, with paths relative to the current folder
    file: PathBuf,
    /// Take DEVICE for the device that the script calls NAME
    #[arg(long = "device", value_name = "NAME=DEVICE", value_parser = named_device)]
    devices: Vec<(String, DeviceId)>,
    /// Write the instruction lists to a file
    #[arg(long, value_name = "FILE")]
    dump_ir: Option<PathBuf>,
}

#[derive(Args)]
struct EngineArgs {
    /// How many CPU devices to offer (cpu:0, cpu:1, ...)
    #[arg(long, value_name = "N", value_parser = |text: &str| devices(text, 1))]
    cpu_devices: Option<u32>,
    /// How many simulated devices to offer (sim:0, sim:1, ...), which do everything in the worst legal order
    #[arg(long, value_name = "N", value_parser = |text: &str| devices(text, 0))]
    sim_devices: Option<u32>,
    /// Most memory of each device and of the host, such as 512M or 2G [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_limit: Option<u64>,
}

#[derive(Args)]
struct LogArgs {
    /// Say on stderr what runs; RUST_LOG says it in detail
    #[arg(long, short)]
    verbose: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    match text.split_once(':') {
        None if text == "threaded" => Ok(Mode::Threaded),
        None if text == "inline" => Ok(Mode::Inline),
        Some(("sim", seed)) => match seed.parse() {
            Ok(seed) => Ok(Mode::Simulated { seed }),
            Err(_) => Err(format!("`{seed}` is no seed: expected a whole number, such as sim:7")),
        },
        _ => Err("expected threaded, inline, or sim:SEED such as sim:7".into()),
    }
}

fn named_device(text: &str) -> Result<(String, DeviceId), String> {
    let (name, device) = text.split_once('=').ok_or("expected NAME=DEVICE, such as acc=cuda:0")?;
    let device = device.parse::<DeviceId>().map_err(|error| error.to_string())?;
    Ok((name.to_owned(), device))
}

fn show(text: &str) -> Result<Show, String> {
    match text {
        "program" => Ok(Show::Program),
        "passes" => Ok(Show::Passes),
        "plan" => Ok(Show::Plan),
        "memory" => Ok(Show::Memory),
        "picture" => Ok(Show::Picture),
        "edges" => Ok(Show::Edges),
        "dot" => Ok(Show::Dot),
        _ => Err("expected program, passes, plan, memory, picture, edges or dot".into()),
    }
}

/// A number of devices, at least `least`.
fn devices(text: &str, least: u32) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (least..=MOST_DEVICES).contains(count));
    count.ok_or_else(|| format!("expected a whole number from {least} to {MOST_DEVICES}"))
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("expected a number of bytes, or one followed by K, M or G".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a number such as 512M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than 64 bits can count".into())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number of seconds such as 2 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|error| format!("not a length of time: {error}"))
}

fn main() -> ExitCode {
    on_own_stack(command)
}

/// Runs the command of the arguments.
fn command() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => return tell(&told),
    };
    let (Command::Run { log, .. }
    | Command::Check { log, .. }
    | Command::Compile { log, .. }
    | Command::Verify { log, .. }
    | Command::Report { log, .. }
    | Command::Inspect { log, .. }
    | Command::PlanMemory { log, .. }
    | Command::Functions { log, .. }
    | Command::Devices { log, .. }) = &cli.command
    else {
        return start(cli.command, "warn");
    };
    // The command reports every failure at its statement, so the log of the engine is off: it would report the failure again.
    let default = if log.verbose { "warn,streamvm_cli=info,streamvm=off" } else { "warn,streamvm=off" };
    start(cli.command, default)
}

fn start(command: Command, default: &str) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(default)).init();

    let (out, err) = (&mut io::stdout(), &mut io::stderr());
    #[cfg(unix)]
    if let Err(error) = interrupt::watch() {
        log::warn!("a signal will end the command at once, and leave unfinished files: {error}");
    }
    // An error here means that stderr cannot be written, so only the exit code can report it.
    act(command, out, err).map_or(ExitCode::FAILURE, |exit| ExitCode::from(exit.code()))
}

fn act(command: Command, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    // Wrong variables are refused by `check` too, so that `check` finds what `run` would refuse.
    let named = match engine_of_environment(&command) {
        Ok(named) => named,
        Err(error) => {
            writeln!(err, "error: {error}")?;
            return Ok(Exit::Rejected);
        }
    };
    match command {
        Command::Run {
            script,
            mode,
            compiled,
            lanes,
            check_finite,
            most_rounds,
            stats,
            record,
            trace,
            trace_last,
            progress,
            profile,
            profile_json,
            report,
            engine,
            ..
        } => {
            let options = ScriptOptions {
                compiled,
                lanes,
                check_finite,
                most_rounds,
                stats,
                record,
                trace,
                trace_last,
                progress,
                profile,
                profile_json,
                report,
                ..script.options()
            };
            let mode = mode.or(named).unwrap_or_default();
            log::info!(target: "streamvm_cli", "mode {mode:?}");
            run_script(&options, &engine.options(mode), out, err)
        }
        Command::Check { script, races, dot, engine, .. } => {
            check_script(&ScriptOptions { races, dot, ..script.options() }, &engine.options(Mode::Inline), out, err)
        }
        Command::Compile { file, program, lanes, show, json, devices, .. } => {
            compile_programs(&ProgramOptions { file, program, lanes, show, json, devices }, out, err)
        }
        Command::Verify { trace, json, .. } => verify_trace(&trace, json, out, err),
        Command::Report { trace, after, json, .. } => report_trace(&trace, after.as_deref(), json, out, err),
        Command::Inspect { trace, html, serve, .. } => {
            inspect_trace(&trace, serve.map_or(PageTo::File(html), PageTo::Port), out, err)
        }
        Command::PlanMemory { file, capacity, budget, steps, json, .. } => {
            plan_memory(&file, PlanOptions { capacity, time: budget, steps, json }, out, err)
        }
        Command::Launch { n, command } => launch(n as usize, &command, err),
        Command::Functions { json, .. } => list_functions(json, out, err),
        Command::Devices { json, engine, .. } => list_devices(&engine.options(Mode::Inline), json, out, err),
    }
}

/// The mode that the environment names for a command that builds an engine and does not say which.
///
/// # Errors
/// If a variable that the engine of this command goes by has a wrong value.
fn engine_of_environment(command: &Command) -> Result<Option<Mode>, Error> {
    if matches!(
        command,
        Command::Compile { .. }
            | Command::Verify { .. }
            | Command::Report { .. }
            | Command::Inspect { .. }
            | Command::PlanMemory { .. }
            | Command::Functions { .. }
            | Command::Launch { .. }
    ) {
        return Ok(None);
    }
    VmBuilder::kernel_threads_of_environment()?;
    if matches!(command, Command::Run { mode: Some(_), .. }) {
        return Ok(None);
    }
    Mode::of_environment()
}

/// Prints the help, the version, or the error in the arguments, which may contain names of files.
fn tell(told: &clap::Error) -> ExitCode {
    let text = told.to_string();
    let plain = without_controls(&text);
    // clap prints with colours; text that contains other control characters is printed escaped and without colours.
    let print = || if plain == text { told.print() } else { write!(io::stderr(), "{plain}") };
    let printed = print().and_then(|()| io::stdout().flush());
    let is_fine = !told.use_stderr();
    match printed {
        Ok(()) if is_fine => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(Exit::Rejected.code()),
        Err(error) => {
            // If stderr cannot be written either, only the exit code reports the error.
            let _ = written(Err(error), &mut io::stderr());
            ExitCode::from(if is_fine { Exit::Failed.code() } else { Exit::Rejected.code() })
        }
    }
}

impl ScriptArgs {
    fn options(self) -> ScriptOptions {
        let ScriptArgs { file, devices, dump_ir } = self;
        ScriptOptions { file, devices, dump_ir, ..ScriptOptions::default() }
    }
}

impl EngineArgs {
    fn options(&self, mode: Mode) -> EngineOptions {
        // A simulated run gets at least one simulated device, since without one it would show little.
        let least = u32::from(matches!(mode, Mode::Simulated { .. }));
        EngineOptions {
            mode,
            cpu_devices: self.cpu_devices,
            sim_devices: self.sim_devices.unwrap_or(least),
            memory_limit: self.memory_limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn modes_are_parsed() {
        assert_eq!(mode("sim:18446744073709551615"), Ok(Mode::Simulated { seed: u64::MAX }));
        assert_eq!((mode("threaded"), mode("inline")), (Ok(Mode::Threaded), Ok(Mode::Inline)));
        for bad in ["", "sim", "sim:", "sim:-1", "fast", "inline:1"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_devices_are_parsed() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("2G"), Ok(2 << 30));
        for bad in ["", "G", "2X", "99999999999999999999", "18446744073709551615G", "ä"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "x", "-1", "NaN", "inf", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(named_device("a=cuda:1"), Ok(("a".into(), DeviceId::cuda(1))));
        assert!(named_device("a").is_err() && named_device("a=gpu").is_err());
    }
}

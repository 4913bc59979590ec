//! The `streamvm` command: runs, checks and plans scripts, and lists devices.
//!
//! This file is arguments, logging and the exit code; [`streamvm_cli::command`] does the work. Ctrl-C has
//! its default effect: the process ends at once, exit code 130 in a shell.
#![deny(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use streamvm::ep::DeviceId;
use streamvm_cli::command::{EngineOptions, ScriptOptions, check_script, list_devices, run_script};

/// An asynchronous execution engine for accelerators: scripts that copy and compute.
///
/// Exit codes: 0 fine, 1 the run failed, 2 the script or the arguments were rejected.
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
        /// How instructions run
        #[arg(long, value_enum, default_value_t = ModeArg::Threaded)]
        mode: ModeArg,
        /// Print how many instructions and syncs ran on each stream
        #[arg(long)]
        stats: bool,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Build and print the instruction list of a script and count its syncs; run nothing
    Check {
        #[command(flatten)]
        script: ScriptArgs,
        #[command(flatten)]
        engine: EngineArgs,
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
    /// The script; paths in it are relative to its folder
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpu_devices: Option<u32>,
    /// Most memory of each CPU device and of the host, such as 512M or 2G [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_limit: Option<u64>,
}

#[derive(Args)]
struct LogArgs {
    /// Say on stderr what runs; RUST_LOG says it in detail
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// Streams run side by side, on threads of their own
    Threaded,
    /// Each instruction runs to completion before the next one
    Inline,
}

fn named_device(text: &str) -> Result<(String, DeviceId), String> {
    let (name, device) = text.split_once('=').ok_or("expected NAME=DEVICE, such as acc=cuda:0")?;
    let device = device.parse::<DeviceId>().map_err(|error| error.to_string())?;
    Ok((name.to_owned(), device))
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("expected a number of bytes, or one with K, M or G behind it".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a number such as 512M".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than 64 bits can count".into())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (Command::Run { log, .. } | Command::Check { log, .. } | Command::Devices { log, .. }) = &cli.command;
    // What fails is told by the command itself, at its statement; the engine would say it again.
    let default = if log.verbose { "warn,streamvm_cli=info,streamvm=off" } else { "warn,streamvm=off" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(default)).init();

    let (out, err) = (&mut io::stdout().lock(), &mut io::stderr());
    let result = match cli.command {
        Command::Run { script, mode, stats, engine, .. } => {
            run_script(&script.options(stats), &engine.options(mode == ModeArg::Inline), out, err)
        }
        Command::Check { script, engine, .. } => check_script(&script.options(false), &engine.options(true), out, err),
        Command::Devices { json, engine, .. } => list_devices(&engine.options(true), json, out, err),
    };
    // An error here means that stderr cannot be written: only the exit code is left to tell.
    result.map_or(ExitCode::FAILURE, |exit| ExitCode::from(exit.code()))
}

impl ScriptArgs {
    fn options(self, stats: bool) -> ScriptOptions {
        ScriptOptions { file: self.file, devices: self.devices, dump_ir: self.dump_ir, stats }
    }
}

impl EngineArgs {
    fn options(&self, inline: bool) -> EngineOptions {
        EngineOptions { inline, cpu_devices: self.cpu_devices, memory_limit: self.memory_limit }
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
    fn sizes_and_devices_are_parsed() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("2G"), Ok(2 << 30));
        for bad in ["", "G", "2X", "99999999999999999999", "18446744073709551615G", "ä"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(named_device("a=cuda:1"), Ok(("a".into(), DeviceId::cuda(1))));
        assert!(named_device("a").is_err() && named_device("a=gpu").is_err());
    }
}

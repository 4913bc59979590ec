//! `peers`: streamvm beside its peers, as a table and as JSON.
//!
//! This file is arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its table and its progress are for a terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use streamvm_benches::harness::arguments::{Measuring, reject};
use streamvm_benches::harness::{child, round_robin};
use streamvm_peers::case::{self, Case};
use streamvm_peers::report;
use streamvm_peers::run::{self, Selection};

/// Measures streamvm beside its peers, in turn, on the same workloads; ratios above 1 say that streamvm is ahead.
///
/// Peers in other languages run where native/build.sh has built their drivers; the others are said not to have run.
///
/// Exit codes: 0 fine, 1 a measurement that needs no driver failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "peers", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    measuring: Measuring,
    /// Measure everything pinned to one core, too
    #[arg(long)]
    one_core: bool,
    /// The JSON file to write
    #[arg(long, value_name = "FILE", default_value = "target/bench/peers.json")]
    out: PathBuf,
    /// Where the drivers of peers in other languages are built
    #[arg(long, value_name = "FOLDER", default_value = "target/peers")]
    drivers: PathBuf,
    /// Measure one case once and print its samples: how this program calls itself
    #[arg(long, hide = true, value_name = "CASE")]
    child: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.child {
        Some(name) => match case::find(name) {
            Some(case) => measure_here(case, &args),
            None => return reject::<Args>(&format!("there is no case `{name}`; {}", cases())),
        },
        None => {
            let filter = &args.measuring.filter;
            let chosen = case::matching(filter);
            if chosen.is_empty() {
                return reject::<Args>(&format!("no case has `{filter}` in its name; {}", cases()));
            }
            measure(chosen, &args)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cases: Vec<Case>, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let (runs, quick) = (args.measuring.runs(), args.measuring.quick);
    let selection = Selection { cases, runs, quick, one_core: args.one_core, drivers: args.drivers.clone() };
    let outcome = run::run(selection, |run, case| eprintln!("run {run} of {runs}: {case}"))?;
    print!("{}", report::table(&outcome));
    streamvm_benches::report::write(&args.out, &report::json(&outcome))?;
    eprintln!("written to {}", args.out.display());
    Ok(())
}

fn measure_here(case: Case, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    if args.one_core {
        child::pin_to_one_core()?;
    }
    let samples = case.measure(&args.drivers, &round_robin::sizes(args.measuring.quick))?;
    print!("{}", child::write(&samples)?);
    Ok(())
}

fn cases() -> String {
    format!("the cases are {}", case::all().map(|case| case.name()).collect::<Vec<_>>().join(", "))
}

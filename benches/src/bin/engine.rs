//! `engine`: the engine workloads beside their floors, as a table, as JSON and as a plot.
//!
//! This file holds arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its table and its progress are for a terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use streamvm_benches::catalogue::cases::{self, CASES};
use streamvm_benches::floors::machine::Machine;
use streamvm_benches::harness::arguments::{Measuring, reject};
use streamvm_benches::harness::case::Case;
use streamvm_benches::harness::child;
use streamvm_benches::harness::round_robin::{self, Selection};
use streamvm_benches::report::{self, plot};

/// Measures the engine's workloads beside their floors: bare bookkeeping, ring hops, round trips.
///
/// Exit codes: 0 fine, 1 a measurement failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "engine", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    measuring: Measuring,
    /// Measure the workloads pinned to one core, too
    #[arg(long)]
    one_core: bool,
    /// The JSON file to write; the plot goes beside it, as .svg
    #[arg(long, value_name = "FILE", default_value = "target/bench/engine.json")]
    out: PathBuf,
    /// Measure one case once and print its samples: how this program calls itself
    #[arg(long, hide = true, value_name = "CASE")]
    child: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.child {
        Some(name) => match cases::find(name) {
            Some(case) => measure_here(case, &args),
            None => return reject::<Args>(&format!("there is no case `{name}`; {}", cases())),
        },
        None => {
            let filter = &args.measuring.filter;
            let chosen = cases::matching(filter);
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

fn measure(cases: Vec<&'static Case>, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let (runs, quick) = (args.measuring.runs(), args.measuring.quick);
    let selection = Selection { cases, runs, quick, one_core: args.one_core };
    let machine = Machine::here();
    println!("{machine}");
    let rows = round_robin::run(&selection, |run, case| eprintln!("run {run} of {runs}: {case}"))?;
    print!("{}", report::table(&rows));
    report::write(&args.out, &json!({ "machine": machine.json(), "rows": report::json(&rows) }))?;
    let plot = args.out.with_extension("svg");
    report::write_text(&plot, &plot::dots::draw(&rows)?)?;
    eprintln!("written to {} and {}", args.out.display(), plot.display());
    Ok(())
}

fn measure_here(case: &Case, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    if args.one_core {
        child::pin_to_one_core()?;
    }
    let samples = (case.run)(&round_robin::sizes(args.measuring.quick))?;
    print!("{}", child::write(&samples)?);
    Ok(())
}

fn cases() -> String {
    format!("the cases are {}", CASES.map(|case| case.name).join(", "))
}

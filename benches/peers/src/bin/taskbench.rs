//! `taskbench`: the METG of the Task Bench patterns on streamvm and its peers, as a table and as JSON.
//!
//! This file is arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its table and its progress are for a terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, value_parser};
use streamvm_benches::harness::arguments::{Measuring, reject};
use streamvm_benches::harness::child;
use streamvm_peers::taskbench::engine::Case;
use streamvm_peers::taskbench::metg::Search;
use streamvm_peers::taskbench::pattern::MOST_COLUMNS;
use streamvm_peers::taskbench::report;
use streamvm_peers::taskbench::run::{self, Selection};

/// Finds the METG(50 %) of the twelve dependence patterns of Task Bench: the smallest task, as wall time times cores over tasks, at which an
/// engine reaches half of its peak. Every task checks its inputs.
///
/// Peers in other languages run where native/taskbench.sh has built their drivers; the others are said not to have run.
///
/// Exit codes: 0 fine, 1 a measurement that needs no driver failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "taskbench", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    measuring: Measuring,
    /// Columns of the graphs; may be given several times
    #[arg(
        long = "width",
        value_name = "N",
        default_values_t = [8, 2],
        value_parser = value_parser!(u32).range(1..=i64::from(MOST_COLUMNS))
    )]
    widths: Vec<u32>,
    /// The JSON file to write
    #[arg(long, value_name = "FILE", default_value = "target/bench/taskbench.json")]
    out: PathBuf,
    /// Where the drivers of peers in other languages are built
    #[arg(long, value_name = "FOLDER", default_value = "target/peers/taskbench")]
    drivers: PathBuf,
    /// Measure one case once and print its samples: how this program calls itself
    #[arg(long, hide = true, value_name = "CASE")]
    child: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.child {
        Some(name) => match Case::all().find(|case| case.name() == *name) {
            Some(case) => measure_here(case, &args),
            None => return reject::<Args>(&format!("there is no case `{name}`; {}", cases())),
        },
        None => {
            let filter = &args.measuring.filter;
            let chosen: Vec<Case> = Case::all().filter(|case| case.name().contains(filter)).collect();
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
    let mut widths: Vec<u32> = Vec::new();
    args.widths.iter().for_each(|width| {
        if !widths.contains(width) {
            widths.push(*width);
        }
    });
    let selection = Selection { cases, widths, runs, quick, drivers: args.drivers.clone() };
    let outcome = run::run(selection, |run, case| eprintln!("run {run} of {runs}: {case}"))?;
    print!("{}", report::table(&outcome));
    streamvm_benches::report::write(&args.out, &report::json(&outcome))?;
    eprintln!("written to {}", args.out.display());
    Ok(())
}

fn measure_here(case: Case, args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let search = if args.measuring.quick { Search::QUICK } else { Search::FULL };
    let samples = case.measure(&args.drivers, &search, &args.widths)?;
    print!("{}", child::write(&samples)?);
    Ok(())
}

fn cases() -> String {
    format!("the cases are {}", Case::all().map(|case| case.name()).collect::<Vec<_>>().join(", "))
}

//! `curves`: the cost of an operation as a size grows, as a table, as JSON and as plots.
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
use streamvm_benches::catalogue::curve::{self, CURVES, Curve};
use streamvm_benches::harness::arguments::{Measuring, reject};
use streamvm_benches::report::{self, plot};

/// Measures what an operation costs with more variables, tensors, streams, pending operations and operands.
///
/// The ratio of the table is to the smallest size. The last columns and the last line say which series are not near-linear: the time of an item
/// grows more than 3-fold with a tenfold size. Exit codes: 0 fine, 1 a measurement failed, 2 the arguments were
/// rejected.
#[derive(Parser)]
#[command(name = "curves", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    measuring: Measuring,
    /// The JSON file to write; the plots go beside it, one a curve
    #[arg(long, value_name = "FILE", default_value = "target/bench/curves.json")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let chosen = curve::matching(&args.measuring.filter);
    if chosen.is_empty() {
        let names = CURVES.each_ref().map(|curve| curve.name).join(", ");
        return reject::<Args>(&format!(
            "no curve has `{}` in its name; the curves are {names}",
            args.measuring.filter
        ));
    }
    match measure(&chosen, &args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(curves: &[&'static Curve], args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let (runs, quick) = (args.measuring.runs(), args.measuring.quick);
    let rows = curve::run(curves, runs, quick, |run, curve, point, left_out| {
        let why = if left_out { " is left out, because a smaller one took too long" } else { "" };
        eprintln!("run {run} of {runs}: {curve} {point}{why}");
    })?;
    print!("{}", curve::table(&rows));
    report::write(&args.out, &curve::json(&rows))?;
    eprintln!("written to {}", args.out.display());
    let stem = args.out.file_stem().unwrap_or_default().to_string_lossy();
    for curve in curves {
        let plot = args.out.with_file_name(format!("{stem}-{}.svg", curve.name));
        report::write_text(&plot, &plot::growth::draw(curve, &rows)?)?;
        eprintln!("written to {}", plot.display());
    }
    Ok(())
}

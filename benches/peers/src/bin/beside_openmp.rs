//! `beside_openmp`: large products of an engine beside a loop of OpenMP in one process, as a table and as JSON.
//!
//! This file is arguments, progress and the exit code; [`streamvm_peers::beside_openmp`] does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its table and its progress are for a terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, value_parser};
use streamvm_peers::beside_openmp;

/// Measures large products beside a loop of OpenMP: time and processor time of both at the same time, of the sum of what they take alone.
///
/// Exit codes: 0 fine, 1 the library cannot be loaded or the engine failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "beside_openmp", version, max_term_width = 100)]
struct Args {
    /// How often each measurement is made; figures are medians
    #[arg(long, value_name = "N", default_value = "5", value_parser = value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Tiny sizes, to see that everything works; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// The loop of OpenMP, as a shared library
    #[arg(long, value_name = "FILE", default_value = "target/peers/openmp_work.so")]
    library: PathBuf,
    /// The JSON file to write
    #[arg(long, value_name = "FILE", default_value = "target/bench/beside_openmp.json")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let rows =
        beside_openmp::measure(&args.library, args.runs, args.quick, |run| eprintln!("run {run} of {}", args.runs))?;
    print!("{}", beside_openmp::table(&rows));
    streamvm_benches::report::write(&args.out, &beside_openmp::json(&rows))?;
    eprintln!("written to {}", args.out.display());
    Ok(())
}

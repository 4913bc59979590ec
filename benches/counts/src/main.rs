//! `instructions`: the counts that the benchmark of the same name measured, beside the committed counts.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program: its table is for a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use streamvm_benches::harness::error::Error;
use streamvm_benches::instructions;

/// Compares instructions of the processor per operation with the committed counts.
///
/// Exit codes: 0 fine, 1 a count grew by more than the limit or a file cannot be read, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "instructions", version, max_term_width = 100)]
struct Args {
    /// Where the benchmark left its summaries
    #[arg(long, value_name = "FOLDER", default_value = "target/gungraun/streamvm-counts")]
    from: PathBuf,
    /// The committed counts
    #[arg(long, value_name = "FILE", default_value = "benches/instructions.json")]
    baseline: PathBuf,
    /// How many percent a count may grow
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    limit: f64,
    /// Commit to these counts: write them to the baseline
    #[arg(long)]
    write: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<bool, Error> {
    let (target, now) = (instructions::target(), instructions::found(&args.from)?);
    if args.write {
        instructions::write(&args.baseline, &target, &now)?;
    }
    let Some(before) = instructions::baseline(&args.baseline, &target)? else {
        eprintln!("not compared: {} has no counts of {target}; --write adds them", args.baseline.display());
        return Ok(true);
    };
    let changes = instructions::compare(&before, &now);
    print!("{}", instructions::table(&changes, args.limit));
    let fine = !changes.iter().any(|change| change.is_bad(args.limit));
    if !fine {
        eprintln!(
            "a count grew by more than {} %, or a workload is on one side only: mend it, or say in the commit why it \
             must and run `make bench-instr WRITE=--write`",
            args.limit
        );
    }
    Ok(fine)
}

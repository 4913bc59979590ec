//! `gpu-faults`: faults that a real device allows, on the first CUDA device.
//!
//! This file is arguments, progress and the exit code; the library does the work.
#![allow(clippy::print_stdout, reason = "a program: its results are for a terminal")]

use std::process::ExitCode;

use clap::Parser;
use streamvm_gpu::faults;

/// Tries faults on the first CUDA device, and says what did not come of them as it must.
///
/// Exit codes: 0 all well, 1 something failed or there is no such case, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "gpu-faults", version, max_term_width = 100)]
struct Args {
    /// Only cases whose name contains this
    filter: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wanted = |name: &str| args.filter.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let cases: Vec<_> = faults::ALL.into_iter().filter(|(name, _)| wanted(name)).collect();
    let mut failed = 0;
    for (name, case) in &cases {
        match case() {
            Ok(()) => println!("{name}: ok"),
            Err(text) => {
                failed += 1;
                println!("{name}: FAILED: {text}");
            }
        }
    }
    println!("{} of {} cases passed", cases.len() - failed, cases.len());
    if failed == 0 && !cases.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

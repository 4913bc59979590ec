//! `lists`: random instruction lists on devices of every kind at once, two of them CUDA devices.
//!
//! This file holds arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its results and its progress are for a terminal"
)]

use std::process::ExitCode;

use clap::Parser;
use streamvm::ep::cuda::CudaConfig;
use streamvm::ep::races::FindingKind;
use streamvm::{Mode, Vm};
use streamvm_tests::lists::{Census, judge};
use streamvm_tests::{HANG, within_time};

/// Seeds whose lists go to one engine.
const BATCH: u64 = 50;

/// Gives random instruction lists to engines with two CUDA devices of this machine, and tells what became of them.
///
/// A list is refused by a typed error, or runs to its end with the right results; a fault ends the program. Exit codes: 0 all well, 1
/// something did not hold, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "lists", version, max_term_width = 100)]
struct Args {
    /// How many seeds
    #[arg(value_name = "N", default_value_t = 1000)]
    seeds: u64,
    /// The first seed; the others follow
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Say each seed before it is run, so that the last one said is the one that a fault ended
    #[arg(long)]
    tell: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let end = args.seed.saturating_add(args.seeds);
    let mut census = Census::default();
    for first in (args.seed..end).step_by(BATCH as usize) {
        let batch = move || run(first..end.min(first + BATCH), args.tell);
        match within_time("a batch of lists", HANG, batch) {
            Ok(counted) => census.add(counted),
            Err(text) => {
                eprintln!("{text}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{census}{} lists passed, of {} seeds", census.passed(), args.seeds);
    let missing = census.missing();
    if args.seeds >= 1000 && !missing.is_empty() {
        eprintln!("of some kinds of instructions none was accepted: {}", missing.join(", "));
        return ExitCode::FAILURE;
    }
    if args.seeds >= 1000 && (census.refused("OutOfReach") == 0 || census.passed() < args.seeds) {
        eprintln!("hardly any list passed, or none was out of reach: too little is drawn");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Gives the lists of these seeds to one engine.
fn run(seeds: std::ops::Range<u64>, tell: bool) -> Result<Census, String> {
    let inline = seeds.start / BATCH % 2 == 1;
    let mode = if inline { Mode::Inline } else { Mode::Threaded };
    let builder = Vm::builder().mode(mode).workers(2).cpu_devices(2).sim_devices(2).cuda(Some(CudaConfig::default()));
    let vm = builder.build().map_err(|error| error.to_string())?;
    let mut census = Census::default();
    for seed in seeds {
        if tell {
            eprintln!("seed {seed}");
        }
        census.add(judge(&vm, seed)?);
    }
    let _ = vm.wait_all();
    // The engine does not report to the detector what CUDA devices write, so only findings about addresses count here: the detector has
    // every allocation.
    let astray = [FindingKind::UnknownMemory, FindingKind::OutOfBounds, FindingKind::AfterFree];
    match vm.races().into_iter().find(|finding| astray.contains(&finding.kind)) {
        None => Ok(census),
        Some(finding) => Err(format!("a finding of the race detector: {finding}")),
    }
}

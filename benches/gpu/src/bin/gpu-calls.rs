//! `gpu-calls`: counts records and waits of the batches of `overlap`, as JSON; `gpu-bench` runs it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its results and its progress are for a terminal"
)]

use std::process::ExitCode;

use clap::Parser;

/// Counts event records and stream waits of streamvm, of code by hand and of cudarc's automatic tracking for the same batches,
/// over a driver that stands in for NVIDIA's: prints JSON.
///
/// Exit codes: 0 they were counted, 1 they were not, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "gpu-calls", version, max_term_width = 100)]
struct Args {
    /// Batches
    #[arg(value_name = "BATCHES")]
    batches: usize,
    /// Products of a batch
    #[arg(value_name = "PRODUCTS")]
    products: usize,
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use streamvm_gpu::benches::Sizes;
    use streamvm_gpu::benches::calls::Counted;

    let Args { batches, products } = Args::parse();
    let sizes = Sizes { batches: batches.max(1), products: products.max(1), ..Sizes::QUICK };
    let driver = streamvm_standin::Standin::load("delay=0");
    match Counted::over(&driver, sizes) {
        Ok(counted) => {
            println!("{}", counted.to_json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    let _ = Args::parse();
    eprintln!("the driver that counts is one for Linux");
    ExitCode::FAILURE
}

//! The conformance suite as a program, for machines without a toolchain: a table for each backend, or JSON.
#![allow(clippy::print_stderr, reason = "a program: its progress is for a terminal")]

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use streamvm::ep::cuda::{self, CudaConfig};
use streamvm_tests::conformance::{Backend, run_some};

/// Runs the conformance suite on the execution providers that this machine has.
#[derive(Parser)]
struct Options {
    /// Only cases whose name contains this.
    filter: Option<String>,
    /// Only the backend of this name: cpu, sim:SEED, cuda where there is one, or faulty(...) of any.
    #[arg(long)]
    backend: Option<String>,
    /// The seed of the simulated device.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print the name of each case to the error stream before it runs.
    #[arg(long)]
    progress: bool,
    /// One JSON object a backend, instead of tables.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let found = cuda::open(&CudaConfig::default()).map(|devices| Backend::cuda(devices.len()));
    let absent = found.as_ref().err().map(ToString::to_string);
    let plain: Vec<Backend> = [Backend::cpu(), Backend::sim(options.seed)].into_iter().chain(found.ok()).collect();
    let all = plain.iter().cloned().chain(plain.iter().map(Backend::faultless));
    let wanted = |backend: &Backend| options.backend.as_ref().is_none_or(|name| name == backend.name());
    let chosen: Vec<Backend> = all.filter(wanted).collect();
    let mut out = stdout().lock();
    let mut good = !chosen.is_empty();
    for backend in &chosen {
        let report = run_some(backend, |name| {
            let wanted = options.filter.as_ref().is_none_or(|part| name.contains(part));
            // Before the case runs: if it hangs, the last line names it.
            if wanted && options.progress {
                eprintln!("{name}");
            }
            wanted
        });
        good &= report.is_ok();
        let written = if options.json { writeln!(out, "{}", report.to_json()) } else { writeln!(out, "{report}\n") };
        // The reader has closed the pipe and needs no more output.
        if written.is_err() {
            break;
        }
    }
    if chosen.is_empty() {
        let _ = writeln!(
            out,
            "there is no such backend; there are cpu, sim:{0}, cuda, and faulty(...) of each",
            options.seed
        );
    }
    if let Some(reason) = absent {
        let _ = if options.json { Ok(()) } else { writeln!(out, "no CUDA device: {reason}") };
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

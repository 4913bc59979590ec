//! `gpu-bench`: streamvm on the first CUDA device, beside the same work by hand and in PyTorch.
//!
//! This file is arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its results and its progress are for a terminal"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};
use streamvm::{DeviceKind, Vm};
use streamvm_gpu::benches::{self, Settings, Sizes};
use streamvm_gpu::contest::Outcome;
use streamvm_gpu::contest::report::{to_json, to_table};
use streamvm_gpu::contest::torch::Torch;

/// Measures streamvm on the first CUDA device, in turn with its references: a table, and JSON where wanted.
///
/// Exit codes: 0 all of streamvm was measured, 1 something of it was not, 2 the arguments were rejected, 3 there is no CUDA
/// device.
#[derive(Parser)]
#[command(name = "gpu-bench", version, max_term_width = 100)]
struct Args {
    /// Only these benches: launch, add-chain, chain-program, loop-program, overlap, weights, allocator, waits, kernels
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the devices as JSON, and measure nothing
    #[arg(long)]
    probe: bool,
    /// Small sizes, for drivers that stand in for NVIDIA's: the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Measured runs of each contender
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Where to write the JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// A Python that may have PyTorch; without it PyTorch is left out
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// The folder of the PyTorch scripts
    #[arg(long, value_name = "FOLDER", default_value = "benches/gpu/torch")]
    scripts: PathBuf,
    /// Launches of a run of `launch`
    #[arg(long, value_name = "N")]
    launches: Option<usize>,
    /// Additions of a run of `add-chain`, and of the runs of `chain-program`
    #[arg(long, value_name = "N")]
    additions: Option<usize>,
    /// Additions of the program of `chain-program`, and rounds of a loop of `loop-program`
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Rows and columns of a batch and of a layer
    #[arg(long, value_name = "N")]
    n: Option<usize>,
    /// Products of a batch
    #[arg(long, value_name = "N")]
    products: Option<usize>,
    /// Batches of a run of `overlap`
    #[arg(long, value_name = "N")]
    batches: Option<usize>,
    /// Layers of a run of `weights`
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Rows that go through the layers
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// Takes and gives back of a run of `allocator`
    #[arg(long, value_name = "N")]
    takes: Option<usize>,
    /// Rows and columns of the tensors of `kernels`, at least 256
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(256..))]
    kernel_n: Option<u32>,
    /// Calls of an op in a run of `kernels`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
}

impl Args {
    fn sizes(&self) -> Sizes {
        let preset = if self.quick { Sizes::QUICK } else { Sizes::FULL };
        let or = |given: Option<usize>, preset: usize| given.unwrap_or(preset).max(1);
        Sizes {
            launches: or(self.launches, preset.launches),
            additions: or(self.additions, preset.additions),
            steps: or(self.steps, preset.steps),
            n: or(self.n, preset.n),
            products: or(self.products, preset.products),
            batches: or(self.batches, preset.batches),
            rows: or(self.rows, preset.rows),
            layers: or(self.layers, preset.layers),
            takes: or(self.takes, preset.takes),
            kernel_n: or(self.kernel_n.map(|n| n as usize), preset.kernel_n),
            repetitions: or(self.repetitions.map(|calls| calls as usize), preset.repetitions),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let known = |name: &String| benches::ALL.iter().any(|(bench, _)| bench == name);
    if let Some(name) = args.only.iter().find(|name| !known(name)) {
        let names: Vec<_> = benches::ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no bench `{name}`; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let devices = match devices() {
        Ok(devices) => devices,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(3);
        }
    };
    if args.probe {
        println!("{devices}");
        return ExitCode::SUCCESS;
    }
    let torch = Torch { python: args.python.clone(), scripts: args.scripts.clone() };
    let settings = Settings { runs: args.runs, sizes: args.sizes(), torch };
    let mut measured = Vec::new();
    for (name, bench) in benches::ALL {
        if !args.only.is_empty() && !args.only.iter().any(|wanted| wanted == name) {
            continue;
        }
        eprintln!("bench {name}");
        let outcome = bench(&settings).unwrap_or_else(|error| {
            let mut outcome = Outcome::new(name, "", "not measured".to_owned());
            outcome.add_missing("streamvm", error);
            outcome
        });
        print!("{}", to_table(&outcome));
        measured.push(outcome);
        // After each bench: one that hangs or crashes takes no figures of those before it along.
        if let Some(path) = &args.out {
            let benches: Vec<_> = measured.iter().map(to_json).collect();
            let all = json!({ "runs": args.runs, "quick": args.quick, "devices": devices, "benches": benches });
            if let Err(error) = write_whole(path, &format!("{all:#}\n")) {
                eprintln!("cannot write {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    if measured.iter().all(Outcome::is_ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes a file beside `path` and moves it there, so that what is there is never a part.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

/// The CUDA devices and their driver, or why there are none, in one line.
fn devices() -> Result<Value, String> {
    let vm = Vm::builder().build().map_err(|error| error.to_string())?;
    vm.cuda_absence().map_or(Ok(()), |absent| Err(format!("no CUDA device: {absent}")))?;
    let found = vm.devices().into_iter().filter(|device| device.id.kind == DeviceKind::CUDA);
    let names: Vec<_> = found.map(|device| json!({ "id": device.id.to_string(), "name": device.name })).collect();
    // Absent where the driver is not the kernel module of Linux.
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let driver = driver.lines().next().unwrap_or_default().trim().to_owned();
    Ok(json!({ "cuda": names, "driver": driver }))
}

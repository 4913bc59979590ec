//! `cuda_programs`: random programs on the CUDA devices of the machine, compared with the inline engine, and random compiled programs on the
//! first of them, with CUDA graphs and without, with fused steps and without, on one lane and on three, with loops and branches, compared
//! with eager calls.
//!
//! This file holds arguments, progress and the exit code; the library does the work.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its results and its progress are for a terminal"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use streamvm::ep::cuda::{self, CudaConfig};
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Vm};
use streamvm_tests::compiled::blocks::{Drawn, compare_drawn};
use streamvm_tests::compiled::{compare, compare_expression};
use streamvm_tests::program::{Machine, Script, judge_on_cuda};
use streamvm_tests::{small_graphs, within};

/// Interval between progress lines.
const PROGRESS: Duration = Duration::from_secs(5);

/// The program stops after this many failures, because one defect usually fails many seeds.
const MOST: usize = 5;

/// Runs random programs on the CUDA devices of this machine, and compares what they see with what they see inline on a CPU. For each, a
/// random compiled program, one with loops and branches and a random elementwise expression run on the first device, with CUDA
/// graphs and without, with fused steps and without, on one lane and on three, and are compared with the same eager calls. The
/// last line says how many groups of steps were fused.
///
/// Programs leave out the ops whose results differ by rounding from device to device. Exit codes: 0 all well, 1 something
/// failed or there is no CUDA device, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "cuda_programs", version, max_term_width = 100)]
struct Args {
    /// How many random programs
    #[arg(value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    programs: u64,
    /// The seed of the first program; the others follow
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let devices = match cuda::open(&CudaConfig::default()) {
        Ok(devices) => devices.len() as u32,
        Err(absent) => {
            eprintln!("no CUDA device: {absent}");
            return ExitCode::FAILURE;
        }
    };
    // A panic is a result here, and is reported as a failure of its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let (start, mut shown, mut failed, mut run) = (Instant::now(), Instant::now(), 0, 0);
    for seed in (0..args.programs).map(|number| args.seed.wrapping_add(number)) {
        run += 1;
        if let Err(text) = judged(seed, devices) {
            failed += 1;
            eprintln!("seed {seed}: {text}\n{}", Script::draw(seed));
        }
        if failed == MOST {
            eprintln!("{failed} programs have failed; no more are run");
            break;
        }
        if shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            eprintln!("{run} of {}, {failed} failed, {:.0} s", args.programs, start.elapsed().as_secs_f64());
        }
    }
    println!(
        "programs equal to the oracle on {devices} CUDA devices: {} of {run} in {:.0} s",
        run - failed as u64,
        start.elapsed().as_secs_f64()
    );
    println!("fused kernels: {} groups of steps", GROUPS.load(Ordering::Relaxed));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the programs of one seed. The error is a text, also for a hang.
fn judged(seed: u64, devices: u32) -> Result<(), String> {
    let judge = move || {
        let judged = judge_on_cuda(&Script::draw(seed), Machine::cuda(devices).exact(), None);
        compiled(seed);
        judged
    };
    match catch_unwind(AssertUnwindSafe(|| within("the program", judge))) {
        Ok(judged) => judged.map_err(|verdict| format!("{:?}: {}", verdict.failing, verdict.text)),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            Err(format!("a panic: {}", text.unwrap_or_default()))
        }
    }
}

/// Groups of steps in the expressions so far.
static GROUPS: AtomicUsize = AtomicUsize::new(0);

/// Compares the compiled programs of one seed.
///
/// # Panics
/// If a result differs.
fn compiled(seed: u64) {
    let vm = Vm::builder().build().expect("an engine");
    let one_by_one = CompileOptions { capture: false, ..small_graphs() };
    let unfused = CompileOptions { fuse: false, ..small_graphs() };
    // Lanes that cost nothing to change over to, so that drawn programs use them: branches of one graph, and segments of their own.
    let branches = CompileOptions { lanes: 3, hand_over_ns: 0, ..small_graphs() };
    let segments = CompileOptions { capture: false, ..branches.clone() };
    let all = [small_graphs(), one_by_one, unfused, branches, segments];
    compare(&vm, seed, &[DeviceId::cuda(0)], &|_| all.to_vec());
    compare_drawn(&vm, DeviceId::cuda(0), seed, &mut Drawn::default());
    let dtype = DType::ALL[seed as usize % DType::ALL.len()];
    let compiled = compare_expression(&vm, DeviceId::cuda(0), dtype, seed);
    GROUPS.fetch_add(compiled.fused().len(), Ordering::Relaxed);
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

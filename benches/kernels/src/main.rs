//! `kernels`: streamvm's CPU kernels, and a model that they compute, beside PyTorch, NumPy, ONNX Runtime and candle, as a table and as JSON.
//!
//! A *case* is one op on operands of one size, a call or a transformer layer of several ops, or a whole model. An *entrant* is a library with a number of threads. Every entrant runs in a process of
//! its own for the whole measurement, and the processes take turns: case by case, entrant by entrant, run by run, so that a noisy second
//! hits all of them alike. A process answers each case with its median time of a call.
//!
//! As speed without the right result is worth nothing, every entrant first names one element of its result of each case, and these are compared.
//! [`cases::tolerance`] says how far apart two of them may be.
//!
//! streamvm's kernels are launched without the engine; the sort, the selection of the largest, the attention, the transformer layer and the model
//! are eager calls, which go through the engine and allocate their outputs. Fused and unfused steps are compiled programs.
//!
//! With `--mask avx512`, a processor with AVX-512 shows what one without it would do: streamvm's kernels, NumPy, PyTorch and the libraries of products within both are told to do without. candle does not use
//! AVX-512. ONNX Runtime cannot be told, and does not run. The first line of the output is the machine, the second one the vectors in use.
//!
//! Outputs of the others exist before a call where the library allows it (`out=` of PyTorch and NumPy). PyTorch's convolutions, poolings, rms norm,
//! cross entropy, attention and layer, and NumPy's sort and softmax, allocate their outputs. candle allocates each output.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: its table and its progress are for a terminal"
)]

mod cases;
mod composed;
mod entrant;
mod fused;
mod layer;
mod model;
mod ours;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use streamvm_benches::floors::machine::Machine;
use streamvm_benches::harness::arguments::{Measuring, reject};

use crate::entrant::{Entrant, Process};
use crate::report::Figure;

/// How long an entrant measures one case in one run, in milliseconds: enough for 5 calls of the slowest case.
const BUDGET_MS: u32 = 100;

/// The budget of a quick run.
const QUICK_BUDGET_MS: u32 = 2;

/// Measures streamvm's CPU kernels beside those of other libraries, in turn; ratios above 1 say that streamvm is slower.
///
/// Libraries whose driver `make bench-kernels` could not build are said not to have run.
///
/// Exit codes: 0 fine, 1 a measurement failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "kernels", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    measuring: Measuring,
    /// Measure what a processor without these vectors would do; where it has none, nothing is measured
    #[arg(long, value_name = "VECTORS")]
    mask: Option<Mask>,
    /// Leave the other libraries out
    #[arg(long)]
    alone: bool,
    /// The JSON file to write
    #[arg(long, value_name = "FILE", default_value = "target/bench/kernels.json")]
    out: PathBuf,
    /// Where the drivers of the other libraries are
    #[arg(long, value_name = "FOLDER", default_value = "target/kernels")]
    drivers: PathBuf,
    /// The folder of the model, to which `make model` fetches it; without it the cases of the model are left out
    #[arg(long, value_name = "FOLDER", default_value = "target/model")]
    model: PathBuf,
    /// Also print where the time of each batch of the model goes, by op; streamvm alone
    #[arg(long)]
    by_op: bool,
    /// Answer cases from stdin with this number of threads: how this program calls itself
    #[arg(long, hide = true, value_name = "THREADS")]
    child: Option<usize>,
}

/// Vectors that are left out.
#[derive(Copy, Clone, PartialEq, Eq, clap::ValueEnum)]
enum Mask {
    Avx512,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let chosen: Vec<&str> = cases::NAMES.into_iter().filter(|name| name.contains(&args.measuring.filter)).collect();
    if chosen.is_empty() {
        let (filter, names) = (&args.measuring.filter, cases::NAMES.join(", "));
        return reject::<Args>(&format!("no case has `{filter}` in its name; the cases are {names}"));
    }
    if args.mask == Some(Mask::Avx512) {
        streamvm_kernels::leave_avx512_out();
    }
    let outcome = match args.child {
        Some(threads) => ours::answer(threads, &args.model).map_err(Into::into),
        None => measure(&chosen, &args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(chosen: &[&'static str], args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let machine = Machine::here();
    println!("{machine}");
    if args.mask == Some(Mask::Avx512) && !machine.has_avx512() {
        println!("it has no AVX-512 that could be left out");
        return Ok(());
    }
    println!("kernels use {}", streamvm_kernels::vectors());
    let (runs, budget) = (args.measuring.runs(), if args.measuring.quick { QUICK_BUDGET_MS } else { BUDGET_MS });
    let mut running: Vec<(Entrant, Process)> = Vec::new();
    for entrant in Entrant::all(args.alone) {
        if args.mask.is_some() && !entrant.can_be_masked() {
            eprintln!("{}: not run: it cannot be told to leave vectors out", entrant.name());
            continue;
        }
        match Process::start(&entrant, &args.drivers, &args.model, args.mask.is_some()) {
            Ok(process) => running.push((entrant, process)),
            Err(error) if entrant.is_streamvm() => return Err(error.into()),
            Err(error) => eprintln!("{}: not run: {error}", entrant.name()),
        }
    }
    for case in chosen {
        compare(case, &mut running)?;
    }
    let mut figures: Vec<Figure> = Vec::new();
    for run in 1..=runs {
        for &case in chosen {
            eprintln!("run {run} of {runs}: {case}");
            for (entrant, process) in &mut running {
                let Some(nanoseconds) = process.ask(case, budget)? else { continue };
                match figures.iter_mut().find(|figure| figure.case == case && figure.entrant == *entrant) {
                    Some(figure) => figure.nanoseconds.push(nanoseconds),
                    None => figures.push(Figure { case, entrant: *entrant, nanoseconds: vec![nanoseconds] }),
                }
            }
        }
    }
    print!("{}{}", report::table(&figures), report::fusion(&figures));
    streamvm_benches::report::write(&args.out, &report::json(&machine, &figures))?;
    eprintln!("written to {}", args.out.display());
    drop(running);
    let batches = chosen.iter().filter(|_| args.by_op).filter_map(|case| Some((case, model::batch_of(case)?)));
    for (case, batch) in batches {
        for threads in [1, 2] {
            println!("\n{case}, threads: {threads}\n{}", model::by_op(&args.model, threads, batch)?);
        }
    }
    Ok(())
}

/// Compares one element of what the entrants compute.
fn compare(case: &str, running: &mut [(Entrant, Process)]) -> Result<(), entrant::Error> {
    let mut expected = None;
    for (entrant, process) in running {
        let Some(found) = process.ask(case, 0)? else { continue };
        let &mut expected = expected.get_or_insert(found);
        // NaN is near nothing.
        let is_near = (found - expected).abs() <= cases::tolerance(case, expected);
        if !is_near {
            let (name, case) = (entrant.name(), case.to_owned());
            return Err(entrant::Error::Differs { name, case, found, expected });
        }
    }
    Ok(())
}

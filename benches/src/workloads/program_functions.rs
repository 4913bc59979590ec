//! Programs of empty functions: what a run of a compiled program costs for each of its steps, beside the bookkeeping of the same graph.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use streamvm::program::CompileOptions;
use streamvm::{DType, Tensor, Vm};

use super::DEVICE;
use super::generate::{VARIABLES, random_ops};
use super::graph::ROUND;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Functions of a program, about; whole rounds of the fan. Many, beside the steps that fill the tensors.
const FUNCTIONS: usize = 10_000;

/// One tensor that every function updates.
///
/// # Errors
/// The engine failed, or called another number of functions.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let functions = vec![Function { reads: Vec::new(), changed: Some(0) }; FUNCTIONS];
    replayed("program_functions_chain", &functions, sizes)
}

/// Random reads and writes among 256 tensors.
///
/// # Errors
/// As [`chain`].
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let functions: Vec<Function> = random_ops(FUNCTIONS)
        .iter()
        .map(|op| Function {
            reads: op.reads().iter().map(|read| *read as usize).collect(),
            changed: Some(op.write as usize),
        })
        .collect();
    replayed("program_functions_random", &functions, sizes)
}

/// One write, then 64 reads.
///
/// # Errors
/// As [`chain`].
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let function = |number: usize| match number % ROUND {
        0 => Function { reads: Vec::new(), changed: Some(0) },
        _ => Function { reads: vec![0], changed: None },
    };
    let functions: Vec<Function> = (0..FUNCTIONS / ROUND * ROUND).map(function).collect();
    replayed("program_functions_fan", &functions, sizes)
}

/// A function of the program, with the numbers of the tensors that it uses.
#[derive(Clone)]
struct Function {
    reads: Vec<usize>,
    /// The tensor that it changes: by an update, as a function that writes must fill its tensor, and both have the same dependences.
    changed: Option<usize>,
}

/// The time of each function, of runs that follow each other without a wait.
fn replayed(workload: &'static str, functions: &[Function], sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let called = Arc::new(AtomicU64::new(0));
    let program = vm.record(workload, |r| {
        let tensors: Vec<Tensor> =
            (0..VARIABLES).map(|_| r.full(DEVICE, DType::U8, &[1], 0)).collect::<Result<_, _>>()?;
        for function in functions {
            let reads = function.reads.iter().map(|read| tensors[*read].read());
            let changed = function.changed.map(|changed| tensors[changed].update());
            r.call_fn("empty", DEVICE, reads.chain(changed), |_| Ok(()))?;
        }
        // So that one can see that the runs have run.
        let called = called.clone();
        r.host_fn("counts", DEVICE, move || {
            called.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    })?;
    let executable = vm.compile(&program, &[], &CompileOptions::default())?;
    let run = |runs: usize| -> Result<(), Error> {
        let mut last = executable.run(&[])?;
        for _ in 1..runs {
            last = executable.run(&[])?;
        }
        Ok(last.wait()?)
    };
    let [warm_up, runs] = [sizes.warm_up().ops, sizes.ops].map(|ops| (ops / functions.len()).max(1));
    run(warm_up)?;
    let clock = Instant::now();
    run(runs)?;
    let ns = clock.elapsed().as_nanos() as f64 / (runs * functions.len()) as f64;
    let called = called.load(Ordering::Relaxed);
    if called != (warm_up + runs) as u64 {
        return Err(Error::Wrong { workload, found: format!("{called} runs") });
    }
    Ok(vec![Sample::ns("ns_per_op_replayed", ns)])
}

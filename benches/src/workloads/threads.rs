//! Threads: several threads submit at once, each on its own lane to its own variables. They share only the engine.

use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use streamvm::Vm;

use super::graph::{LIST, submit, variables};
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Number of submitting threads: one, the cores of a small machine, and more than that.
const THREADS: [usize; 3] = [1, 2, 4];

/// Variables of each thread.
const VARIABLES: usize = 256;

/// Time per operation over all threads, in lists and one a submission.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn threads(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for threads in THREADS {
        for (list, name) in [(LIST, "lists_of_64"), (1, "single")] {
            let vm = Vm::builder().build()?;
            together(&vm, threads, sizes.warm_up().ops, list)?;
            let metric = format!("ns_per_op_{name}_threads_{threads}");
            samples.push(Sample::ns(&metric, together(&vm, threads, sizes.ops, list)?));
        }
    }
    Ok(samples)
}

/// Submits `ops` operations from `threads` threads and waits for them; returns the time per operation in ns.
fn together(vm: &Vm, threads: usize, ops: usize, list: usize) -> Result<f64, Error> {
    let instructions = || vm.stats().streams.iter().map(|stream| stream.instructions).sum::<u64>();
    let (each, before) = (ops / threads, instructions());
    let start = Instant::now();
    thread::scope(|scope| {
        let submitters: Vec<_> =
            (0..threads).map(|lane| scope.spawn(move || submit_on(vm, lane as u32, each, list))).collect();
        let joined = submitters.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.collect::<Result<(), Error>>()
    })?;
    vm.wait_all()?;
    let ns = start.elapsed().as_nanos() as f64 / (each * threads) as f64;
    let (ran, expected) = (instructions() - before, (each * threads) as u64);
    if ran != expected {
        return Err(Error::Wrong { workload: "threads", found: format!("{ran} instructions, not {expected}") });
    }
    Ok(ns)
}

fn submit_on(vm: &Vm, lane: u32, ops: usize, list: usize) -> Result<(), Error> {
    let _lane = streamvm::Lane(lane).enter();
    let variables = variables(vm, VARIABLES);
    submit(vm, ops, list, |sink, op| sink.empty([variables[op % VARIABLES].write()]))
}

//! Submission behind a blocked operation: the cost to submit one more while many are pending, and the cost to run each of them.

use std::time::{Duration, Instant};

use streamvm::{InstructionsBuilder, Vm};

use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::workloads::graph::{blocked, submit};

/// Most rounds of a measurement: each round wakes a thread, which takes up to 50 µs.
const ROUNDS: usize = 1_000;

/// Two times per operation, for `depth` operations on one stream behind a blocked one: to submit them, one a submission; and from the
/// release of the blocked one until all have passed. Up to a depth of hundreds, the second is mostly the time to wake the thread
/// context and then the waiting thread.
///
/// # Errors
/// The engine failed, or another number of instructions was pending.
pub fn depth(depth: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let rounds = (ops / depth).clamp(1, ROUNDS);
    let vm = Vm::builder().max_instructions(depth as u64 + 1).build()?;
    round(&vm, depth)?;
    let (mut submitting, mut running) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..rounds {
        let (submitted, ran) = round(&vm, depth)?;
        submitting += submitted;
        running += ran;
    }
    let ns = |total: Duration| total.as_nanos() as f64 / (rounds * depth) as f64;
    Ok(vec![Sample::ns("submit", ns(submitting)), Sample::ns("run off", ns(running))])
}

fn round(vm: &Vm, depth: usize) -> Result<(Duration, Duration), Error> {
    let variable = vm.var();
    let mut block = InstructionsBuilder::new();
    let release = blocked(&mut block, variable.update())?;
    vm.submit(block.finish())?;

    let start = Instant::now();
    submit(vm, depth, 1, |sink, _| sink.empty([variable.update()]))?;
    let submitting = start.elapsed();
    let (pending, expected) = (vm.stats().in_flight, depth as u64 + 1);
    if pending != expected {
        return Err(Error::Wrong { workload: "depth", found: format!("{pending} were pending, not {expected}") });
    }
    let start = Instant::now();
    drop(release);
    vm.wait_all()?;
    Ok((submitting, start.elapsed()))
}

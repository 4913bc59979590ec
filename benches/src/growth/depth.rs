//! Submission behind a blocked operation: what one more costs when many are pending, and what each costs to run off.

use std::time::{Duration, Instant};

use streamvm::{InstructionsBuilder, Vm};

use crate::case::Sample;
use crate::error::Error;
use crate::workloads::graph::{blocked, submit};

/// The most rounds of a measurement: each wakes a thread, which takes up to 50 µs.
const ROUNDS: usize = 1_000;

/// Time per operation to submit `depth` of them, one a submission, on one stream behind a blocked one; and from its
/// release to the end of all, which up to hundreds is mostly the time to wake its thread, and then the waiting one.
///
/// # Errors
/// The engine failed, or less was pending.
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

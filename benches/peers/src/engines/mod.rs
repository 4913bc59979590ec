//! The engines that this program runs itself: each function measures one workload once, and warms up before.

pub mod channel;
pub mod inline;
pub mod rayon;
pub mod tokio;

use std::time::Instant;

use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;
use streamvm_benches::harness::stats::median_and_p99;

/// Time of one of `sizes.ops` operations. `run` runs as many as it is told, and gives how many it finds to have run.
fn per_op(engine: &'static str, sizes: &Sizes, mut run: impl FnMut(usize) -> u64) -> Result<Vec<Sample>, Error> {
    let mut ns = 0.0;
    for ops in [sizes.warm_up().ops, sizes.ops] {
        let start = Instant::now();
        let ran = run(ops);
        ns = start.elapsed().as_nanos() as f64 / ops as f64;
        if ran != ops as u64 {
            return Err(Error::Wrong { workload: engine, found: format!("{ran} operations ran, not {ops}") });
        }
    }
    Ok(vec![Sample::ns("ns_per_op", ns)])
}

/// Median and p99 of round trips. `trip` has an operation add one to a number, and waits for it.
fn round_trips(engine: &'static str, sizes: &Sizes, mut trip: impl FnMut(u64) -> u64) -> Result<Vec<Sample>, Error> {
    let warm_up = sizes.warm_up().trips;
    let mut durations = Vec::with_capacity(warm_up + sizes.trips);
    for number in 0..(warm_up + sizes.trips) as u64 {
        let start = Instant::now();
        let next = trip(number);
        durations.push(start.elapsed().as_nanos() as u64);
        if next != number + 1 {
            return Err(Error::Wrong { workload: engine, found: format!("{number} + 1 is not {next}") });
        }
    }
    let (median, p99) = median_and_p99(&mut durations[warm_up..]);
    Ok(vec![Sample::ns("median", median), Sample::ns("p99", p99)])
}

//! Floors of the workloads that are graphs of empty functions: their dependence analysis alone.

use std::time::Instant;

use crate::floors::bookkeeping::Bookkeeping;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::workloads::generate::{VARIABLES, random_ops};
use crate::workloads::graph::{INDEPENDENT_VARIABLES, READERS};

/// One variable that every operation reads and writes.
///
/// # Errors
/// An operation was lost.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    measure("floor/chain", 1, [sizes.warm_up().ops, sizes.ops], 1, |engine, op| engine.push(&[], Some(0), op as u64))
}

/// Operations that each write their own variable, round robin.
///
/// # Errors
/// An operation was lost.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    measure("floor/independent", INDEPENDENT_VARIABLES, [sizes.warm_up().ops, sizes.ops], 1, |engine, op| {
        engine.push(&[], Some((op % INDEPENDENT_VARIABLES) as u32), op as u64);
    })
}

/// Random reads and writes.
///
/// # Errors
/// An operation was lost.
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let ops = random_ops(sizes.random);
    measure("floor/random", VARIABLES, [sizes.warm_up().random, sizes.random], 1, |engine, op| {
        engine.push(ops[op].reads(), Some(ops[op].write), op as u64);
    })
}

/// One write, then many reads.
///
/// # Errors
/// An operation was lost.
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    measure("floor/fan", 1, [sizes.warm_up().rounds, sizes.rounds], READERS + 1, |engine, round| {
        engine.push(&[], Some(0), round as u64);
        (0..READERS).for_each(|reader| engine.push(&[0], None, reader as u64));
    })
}

/// Pushes `counts` steps of `ops_each` operations each, first to warm up and then to measure; returns the time per operation.
fn measure(
    floor: &'static str,
    variables: usize,
    counts: [usize; 2],
    ops_each: usize,
    mut push: impl FnMut(&mut Bookkeeping, usize),
) -> Result<Vec<Sample>, Error> {
    let mut engine = Bookkeeping::new(variables);
    let mut ns_per_op = 0.0;
    for count in counts {
        let start = Instant::now();
        (0..count).for_each(|step| push(&mut engine, step));
        engine.drain();
        ns_per_op = start.elapsed().as_nanos() as f64 / (count * ops_each) as f64;
    }
    if !engine.is_drained() {
        return Err(Error::Wrong { workload: floor, found: "operations are left that never became ready".to_owned() });
    }
    Ok(vec![Sample::ns("ns_per_op", ns_per_op)])
}

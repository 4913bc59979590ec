//! The graphs of empty functions on workers: unordered, each function runs as soon as its dependences are satisfied.
//!
//! Two forms of submission: one function at a time, as a program pushes them, and lists of 64 or of a round.

use std::hint::black_box;
use std::time::Instant;

use streamvm::{Var, Vm};

use super::graph::{Emit, Graph, LIST, ROUND};
use super::latency::round_trips;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Workers of the pool: as many as the compared engines use on the machine of the figures.
const WORKERS: usize = 2;

/// One variable that every function reads and writes.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    measured(&Graph::chain(engine()?).on_workers(), sizes.ops, sizes.warm_up().ops, LIST)
}

/// Functions that each write their own variable, round robin.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    measured(&Graph::independent(engine()?).on_workers(), sizes.ops, sizes.warm_up().ops, LIST)
}

/// Random reads and writes.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = Graph::random(engine()?, sizes.random, 1).on_workers();
    measured(&graph, sizes.random, sizes.warm_up().random, LIST)
}

/// One write, then 64 reads; a list is one such round.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = Graph::fan(engine()?, 1).on_workers();
    measured(&graph, sizes.rounds * ROUND, sizes.warm_up().rounds * ROUND, ROUND)
}

/// Random reads and writes, each with 1 to 9 µs of work: the time of the whole run, divided by the number of operations. Two workers
/// cannot take less than half of the time that one thread needs for the work alone.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn irregular(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = Graph::irregular(engine()?, sizes.irregular).on_workers();
    measured(&graph, sizes.irregular, sizes.warm_up().irregular, LIST)
}

/// The chain, with three more variables that each function reads: pushed as a new function each time, and as one operator again and
/// again; each without captures, and with 64 bytes of captures, more than are stored without an allocation.
///
/// # Errors
/// The engine failed, or ran another number of functions.
pub fn operator(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = engine()?;
    let variables: [Var; 4] = std::array::from_fn(|_| vm.var());
    let [changed, a, b, c] = &variables;
    let uses = || [changed.update(), a.read(), b.read(), c.read()];
    let over = |captured: [u64; 8]| {
        move || {
            black_box(&captured);
            Ok(())
        }
    };
    let operator = vm.operator("empty", uses(), || Ok(()));
    let operator_over = vm.operator("empty", uses(), over([0; 8]));
    let push = || vm.push("empty", uses(), || Ok(())).map(drop);
    let push_over = || vm.push("empty", uses(), over(black_box([0; 8]))).map(drop);
    let again = || vm.push_operator(&operator).map(drop);
    let again_over = || vm.push_operator(&operator_over).map(drop);
    let calls: [(_, &dyn Fn() -> _); 4] = [
        ("ns_per_op_push", &push),
        ("ns_per_op_operator", &again),
        ("ns_per_op_push_64_bytes", &push_over),
        ("ns_per_op_operator_64_bytes", &again_over),
    ];
    let mut samples = Vec::new();
    for (metric, call) in calls {
        let run = |ops: usize| {
            let start = Instant::now();
            (0..ops).try_for_each(|_| call())?;
            vm.wait_all()?;
            Ok::<_, Error>(start.elapsed().as_nanos() as f64 / ops as f64)
        };
        run(sizes.warm_up().ops)?;
        samples.push(Sample::ns(metric, run(sizes.ops)?));
    }
    let expected = (calls.len() * (sizes.warm_up().ops + sizes.ops)) as u64;
    let ran = vm.stats().streams[0].instructions;
    if ran != expected {
        return Err(Error::Wrong { workload: "operator", found: format!("{ran} functions, not {expected}") });
    }
    Ok(samples)
}

/// Median and p99 of an empty function that is pushed and waited for.
///
/// # Errors
/// The engine failed.
pub fn latency(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = engine()?;
    let variable = vm.var();
    let (median, p99) = round_trips(sizes, || Ok(vm.push("empty", [variable.update()], || Ok(()))?))?;
    Ok(vec![Sample::ns("median_function", median), Sample::ns("p99_function", p99)])
}

fn measured<E: Emit>(graph: &Graph<E>, ops: usize, warm_up: usize, list: usize) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (metric, list) in [("ns_per_op_lists", list), ("ns_per_op_single", 1)] {
        graph.run(warm_up, list)?;
        samples.push(Sample::ns(metric, graph.run(ops, list)?));
    }
    Ok(samples)
}

fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().workers(WORKERS).build()?)
}

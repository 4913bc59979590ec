//! streamvm in inline mode: everything runs in the thread that submits. What a naive engine is read against.

use streamvm::{Mode, Vm};
use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;
use streamvm_benches::harness::stats::median_and_p99;
use streamvm_benches::workloads::graph::{Emit, Graph, LIST, ROUND};

/// One variable that every operation reads and writes.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    lists_and_single(&Graph::chain(engine()?), [sizes.warm_up().ops, sizes.ops], ("ns_per_op_lists_of_64", LIST))
}

/// Operations that each write their own variable, round robin.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    lists_and_single(&Graph::independent(engine()?), [sizes.warm_up().ops, sizes.ops], ("ns_per_op_lists_of_64", LIST))
}

/// Random reads and writes.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = Graph::random(engine()?, sizes.random, 1);
    lists_and_single(&graph, [sizes.warm_up().random, sizes.random], ("ns_per_op_one_lane", LIST))
}

/// One write, then 64 reads.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let ops = [sizes.warm_up().rounds, sizes.rounds].map(|rounds| rounds * ROUND);
    lists_and_single(&Graph::fan(engine()?, 1), ops, ("ns_per_op_one_lane", ROUND))
}

/// Random reads and writes with 1 to 9 µs of work each: what all of it takes on one thread.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn irregular(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = Graph::irregular(engine()?, sizes.irregular);
    lists_and_single(&graph, [sizes.warm_up().irregular, sizes.irregular], ("ns_per_op_lists", LIST))
}

/// One instruction is built, submitted and waited for, then the next.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn latency(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = Graph::chain(engine()?);
    graph.run(sizes.warm_up().trips, 1)?;
    let trip = |_| Ok(graph.run(1, 1)? as u64);
    let mut durations = (0..sizes.trips).map(trip).collect::<Result<Vec<_>, Error>>()?;
    let (median, p99) = median_and_p99(&mut durations);
    Ok(vec![Sample::ns("median_function", median), Sample::ns("p99_function", p99)])
}

fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().mode(Mode::Inline).build()?)
}

fn lists_and_single<E: Emit>(
    graph: &Graph<E>,
    [warm_up, ops]: [usize; 2],
    lists: (&str, usize),
) -> Result<Vec<Sample>, Error> {
    let measured = |(metric, list): (&str, usize)| {
        graph.run(warm_up, list)?;
        Ok(Sample::ns(metric, graph.run(ops, list)?))
    };
    [lists, ("ns_per_op_single", 1)].into_iter().map(measured).collect()
}

//! Workloads at growing sizes, and the cost of an operation at each. Each size is measured on a warm engine, which has run all of it
//! once.
//!
//! Layer: uses `harness`, `workloads` and `parts`; is used by `catalogue`.
//!
//! Main parts: each function measures one size of a curve: [`variables`], [`streams`], [`operands`],
//! [`tensors`](tensors::tensors), [`depth`](depth::depth), [`lists`](lists::lists), [`futures`](futures::futures),
//! [`compiling`](programs::compiling) and [`programs`](programs::programs).

pub mod depth;
pub mod futures;
pub mod lists;
pub mod programs;
pub mod tensors;

use std::time::Instant;

use streamvm::Vm;

use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::parts::soft_sync::over_streams;
use crate::workloads::graph::{self, Emit, Graph, INDEPENDENT_VARIABLES, LIST};

/// Operations that each write one of `count` variables, round robin.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn variables(count: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let graph = Graph::independent_over(engine()?, count, 1);
    Ok(vec![Sample::ns("write of one variable", warm(&graph, ops.max(count))?)])
}

/// Operations that go round robin to `lanes` lanes:
///
/// * over variables of the lane, in lists and one a submission;
/// * over one variable, so that each waits for the one before;
/// * with random reads and writes, on the engine and in the pass alone.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn streams(lanes: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let independent = Graph::independent_over(engine()?, INDEPENDENT_VARIABLES, lanes);
    let mut samples = vec![Sample::ns("independent", warm(&independent, ops)?)];
    samples.push(Sample::ns("independent, single", independent.run(ops, 1)?));
    samples.push(Sample::ns("random", warm(&Graph::random(engine()?, ops, lanes), ops)?));
    samples.push(Sample::ns("random, pass alone", over_streams(lanes as u32, ops, ops)?));
    // With one lane there is no other lane to wait for.
    if lanes > 1 {
        samples.push(Sample::ns("crossing", warm(&Graph::crossing(engine()?, lanes), ops)?));
    }
    Ok(samples)
}

/// The time of each operand: of functions over `operands` variables each, of which they write one; and of functions over one variable each, of
/// which `operands` are gathered in one instruction.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn operands(operands: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let ops = (ops / operands).max(2);
    let function = warm(&Graph::operands(engine()?, operands), ops)? / operands as f64;
    Ok(vec![Sample::ns("of a function", function), Sample::ns("of a bulk", bulk(operands, ops)?)])
}

/// The time of each function of `ops` bulks of `functions`, over a variable each, after one bulk to warm up.
fn bulk(functions: usize, ops: usize) -> Result<f64, Error> {
    let vm = engine()?;
    let variables = graph::variables(&vm, functions);
    let mut bulk = vm.bulk(functions);
    let mut push_all = || variables.iter().try_for_each(|variable| bulk.push("empty", [variable.update()], || Ok(())));
    push_all()?;
    vm.wait_all()?;
    let start = Instant::now();
    for _ in 0..ops {
        push_all()?;
    }
    vm.wait_all()?;
    Ok(start.elapsed().as_nanos() as f64 / (ops * functions) as f64)
}

fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().build()?)
}

/// Time per operation in lists, after all of them have run once to warm up.
fn warm(graph: &Graph<impl Emit>, ops: usize) -> Result<f64, Error> {
    graph.run(ops, LIST)?;
    graph.run(ops, LIST)
}

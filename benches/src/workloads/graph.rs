//! Workloads that are graphs of empty functions: what remains is the engine.
//!
//! The clock runs from the first call of the builder to the end of the last instruction: building, submitting, running.

use std::time::Instant;

use streamvm::{BuildError, InstructionsBuilder, Use, Var, Vm};

use super::DEVICE;
use crate::case::{Sample, Sizes};
use crate::error::Error;
use crate::generate::{RandomOp, VARIABLES, random_ops};

/// Instructions of a list, where nothing else is said.
const LIST: usize = 64;

/// Variables of the independent workload.
pub const INDEPENDENT_VARIABLES: usize = 1_024;

/// Reads of one round of the fan workload.
pub const READERS: usize = 64;

/// One variable that every operation reads and writes: in lists, and one operation a submission.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let bench = Bench::new("chain")?;
    let variable = bench.vm.var();
    lists_and_single(&bench, sizes, |builder, _| empty(builder, [variable.update()]))
}

/// Operations that each write their own variable, round robin: in lists, and one operation a submission.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let bench = Bench::new("independent")?;
    let variables = bench.variables(INDEPENDENT_VARIABLES);
    lists_and_single(&bench, sizes, |builder, op| empty(builder, [variables[op % INDEPENDENT_VARIABLES].write()]))
}

/// Random reads and writes: on one lane, and with each operation on the next of four.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let ops = random_ops(sizes.random);
    let on_lanes = |lanes: usize| -> Result<f64, Error> {
        let bench = Bench::new("random")?;
        let variables = bench.variables(VARIABLES);
        let emit = |builder: &mut InstructionsBuilder, op: usize| {
            builder.set_lane((op % lanes) as u32);
            random_op(builder, &variables, &ops[op])
        };
        bench.run(sizes.warm_up().random, LIST, emit)?;
        bench.run(sizes.random, LIST, emit)
    };
    Ok(vec![Sample::ns("ns_per_op_one_lane", on_lanes(1)?), Sample::ns("ns_per_op_four_lanes", on_lanes(4)?)])
}

/// One write, then 64 reads, each list one such round: on one lane, and with each read on the next of two.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    const ROUND: usize = READERS + 1;
    let on_lanes = |lanes: usize| -> Result<f64, Error> {
        let bench = Bench::new("fan")?;
        let variable = bench.vm.var();
        let emit = |builder: &mut InstructionsBuilder, op: usize| match op % ROUND {
            0 => {
                builder.set_lane(0);
                empty(builder, [variable.write()])
            }
            reader => {
                builder.set_lane((reader % lanes) as u32);
                empty(builder, [variable.read()])
            }
        };
        bench.run(sizes.warm_up().rounds * ROUND, ROUND, emit)?;
        bench.run(sizes.rounds * ROUND, ROUND, emit)
    };
    Ok(vec![Sample::ns("ns_per_op_one_lane", on_lanes(1)?), Sample::ns("ns_per_op_two_lanes", on_lanes(2)?)])
}

fn lists_and_single(
    bench: &Bench,
    sizes: &Sizes,
    emit: impl Fn(&mut InstructionsBuilder, usize) -> Result<(), BuildError>,
) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (metric, list) in [("ns_per_op_lists_of_64", LIST), ("ns_per_op_single", 1)] {
        bench.run(sizes.warm_up().ops, list, &emit)?;
        samples.push(Sample::ns(metric, bench.run(sizes.ops, list, &emit)?));
    }
    Ok(samples)
}

fn empty(builder: &mut InstructionsBuilder, uses: impl IntoIterator<Item = Use>) -> Result<(), BuildError> {
    builder.call_fn("empty", DEVICE, uses, |_| Ok(()))
}

fn random_op(builder: &mut InstructionsBuilder, variables: &[Var], op: &RandomOp) -> Result<(), BuildError> {
    let reads = op.reads().iter().map(|read| variables[*read as usize].read());
    empty(builder, reads.chain([variables[op.write as usize].write()]))
}

/// An engine for one workload.
struct Bench {
    workload: &'static str,
    vm: Vm,
}

impl Bench {
    fn new(workload: &'static str) -> Result<Bench, Error> {
        Ok(Bench { workload, vm: Vm::builder().build()? })
    }

    fn variables(&self, count: usize) -> Vec<Var> {
        (0..count).map(|_| self.vm.var()).collect()
    }

    /// Emits `ops` operations in lists of `list`, waits for all, and gives the time of one in ns.
    fn run(
        &self,
        ops: usize,
        list: usize,
        emit: impl Fn(&mut InstructionsBuilder, usize) -> Result<(), BuildError>,
    ) -> Result<f64, Error> {
        let before = self.instructions();
        let start = Instant::now();
        for first in (0..ops).step_by(list) {
            let mut builder = InstructionsBuilder::new();
            for op in first..ops.min(first + list) {
                emit(&mut builder, op)?;
            }
            self.vm.submit(builder.finish())?;
        }
        self.vm.wait_all()?;
        let ns = start.elapsed().as_nanos() as f64 / ops as f64;
        let ran = self.instructions() - before;
        if ran != ops as u64 {
            return Err(Error::Wrong { workload: self.workload, found: format!("{ran} instructions, not {ops}") });
        }
        Ok(ns)
    }

    fn instructions(&self) -> u64 {
        self.vm.stats().streams.iter().map(|stream| stream.instructions).sum()
    }
}

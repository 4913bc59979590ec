//! Workloads that are graphs of empty functions, which measure the engine alone.
//!
//! The clock runs from the first call of the builder until the last instruction has passed: building, submitting, running.

use std::sync::mpsc;
use std::time::Instant;

use streamvm::instructions::LaneGuard;
use streamvm::{FnError, InstructionsBuilder, Lane, Use, Var, Vm};

use super::DEVICE;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::workloads::generate::{RandomOp, VARIABLES, random_ops, steps_of, work};

/// Instructions of a list, unless a workload says otherwise.
pub const LIST: usize = 64;

/// Variables of the independent workload.
pub const INDEPENDENT_VARIABLES: usize = 1_024;

/// Reads of one round of the fan workload.
pub const READERS: usize = 64;

/// Operations of one round of the fan workload: one write, then the reads.
pub const ROUND: usize = READERS + 1;

/// One variable that every operation reads and writes: in lists, and one operation a submission.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    lists_and_single(Graph::chain(engine()?), sizes)
}

/// Operations that each write their own variable, round robin: in lists, and one operation a
/// submission.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    lists_and_single(Graph::independent(engine()?), sizes)
}

/// Random reads and writes: in lists on one lane, with each operation on the next of four, and one operation a submission on one lane.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = |lanes: usize| -> Result<_, Error> { Ok(Graph::random(engine()?, sizes.random, lanes)) };
    let sizes = (sizes.warm_up().random, sizes.random);
    Ok(vec![
        graph(1)?.sample("ns_per_op_one_lane", sizes, LIST)?,
        graph(4)?.sample("ns_per_op_four_lanes", sizes, LIST)?,
        graph(1)?.sample("ns_per_op_single", sizes, 1)?,
    ])
}

/// One write, then 64 reads, each list one such round: on one lane, with each read on the next of two, and one operation
/// a submission on one lane.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let graph = |lanes: usize| -> Result<_, Error> { Ok(Graph::fan(engine()?, lanes)) };
    let sizes = (sizes.warm_up().rounds * ROUND, sizes.rounds * ROUND);
    Ok(vec![
        graph(1)?.sample("ns_per_op_one_lane", sizes, ROUND)?,
        graph(2)?.sample("ns_per_op_two_lanes", sizes, ROUND)?,
        graph(1)?.sample("ns_per_op_single", sizes, 1)?,
    ])
}

fn lists_and_single<E: Emit>(graph: Graph<E>, sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let sizes = (sizes.warm_up().ops, sizes.ops);
    let lists = graph.sample("ns_per_op_lists_of_64", sizes, LIST)?;
    let single = graph.sample("ns_per_op_single", sizes, 1)?;
    Ok(vec![lists, single])
}

fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().build()?)
}

/// Emits an instruction that blocks until the returned sender is dropped.
pub(crate) fn blocked(builder: &mut InstructionsBuilder, held: Use<'_>) -> Result<mpsc::Sender<()>, streamvm::Error> {
    let (release, released) = mpsc::channel();
    builder.call_fn("blocked", DEVICE, [held], move |_| {
        // An error means that the sender was dropped, which is the signal to go on.
        let _ = released.recv();
        Ok(())
    })?;
    Ok(release)
}

/// The way that operations take to the engine: in a list, or one by one through the calls that a program makes.
pub enum Sink<'a> {
    /// Into a list.
    List(InstructionsBuilder),
    /// Into a list, for workers.
    WorkerList(InstructionsBuilder),
    /// To the engine's streams, one by one.
    Streams {
        /// The engine.
        vm: &'a Vm,
        /// The guard of the lane, where it is not the lane of the thread.
        lane: Option<LaneGuard>,
    },
    /// To the engine's workers, one by one.
    Workers(&'a Vm),
}

impl<'a> Sink<'a> {
    /// An empty list.
    fn list(workers: bool) -> Sink<'a> {
        let builder = InstructionsBuilder::new();
        if workers { Sink::WorkerList(builder) } else { Sink::List(builder) }
    }

    /// Emits an operation that runs `f`.
    ///
    /// # Errors
    /// The operation cannot be built, or the engine failed.
    #[inline(always)]
    pub fn call(
        &mut self,
        name: &'static str,
        uses: impl IntoIterator<Item = Use<'a>>,
        f: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let function = move || {
            f();
            Ok(())
        };
        match self {
            Sink::List(builder) => Ok(builder.call_fn(name, DEVICE, uses, move |_| function())?),
            _ => self.call_otherwise(name, uses, function),
        }
    }

    /// Not inlined, so that a program that only makes lists for streams does not carry this code.
    #[inline(never)]
    fn call_otherwise(
        &mut self,
        name: &'static str,
        uses: impl IntoIterator<Item = Use<'a>>,
        function: impl FnOnce() -> Result<(), FnError> + Send + 'static,
    ) -> Result<(), Error> {
        match self {
            Sink::List(_) => unreachable!("a list takes it itself"),
            Sink::WorkerList(builder) => builder.on_workers().call_fn(name, DEVICE, uses, move |_| function())?,
            Sink::Streams { vm, .. } => drop(vm.call_fn(name, DEVICE, uses, move |_| function())?),
            Sink::Workers(vm) => drop(vm.push(name, uses, function)?),
        }
        Ok(())
    }

    /// Emits an operation that does nothing.
    ///
    /// # Errors
    /// As [`Sink::call`].
    #[inline(always)]
    pub fn empty(&mut self, uses: impl IntoIterator<Item = Use<'a>>) -> Result<(), Error> {
        self.call("empty", uses, || ())
    }

    /// Emits an operation that does nothing, on a lane. Workers take single operations without a lane.
    ///
    /// # Errors
    /// As [`Sink::call`].
    #[inline(always)]
    pub fn empty_on(&mut self, number: u32, uses: impl IntoIterator<Item = Use<'a>>) -> Result<(), Error> {
        match self {
            Sink::List(builder) => {
                return Ok(builder.on_lane(number).call_fn("empty", DEVICE, uses, |_| Ok(()))?);
            }
            Sink::WorkerList(builder) => {
                return Ok(builder.on_lane(number).on_workers().call_fn("empty", DEVICE, uses, |_| Ok(()))?);
            }
            Sink::Streams { lane, .. } if Lane::current().0 != number => {
                *lane = None;
                *lane = Some(streamvm::Lane(number).enter());
            }
            Sink::Streams { .. } | Sink::Workers(_) => {}
        }
        self.empty(uses)
    }
}

/// The uses of an operation of the random workload.
pub(crate) fn uses_of<'a>(variables: &'a [Var], op: &RandomOp) -> impl Iterator<Item = Use<'a>> {
    let reads = op.reads().iter().map(|read| variables[*read as usize].read());
    reads.chain([variables[op.write as usize].write()])
}

/// Emits operations 0 to `ops` and submits them in lists of `list`; with `list` = 1, by calls that need no list.
///
/// # Errors
/// An operation cannot be built, or the engine failed.
pub fn submit<'a>(
    vm: &'a Vm,
    ops: usize,
    list: usize,
    emit: impl Fn(&mut Sink<'a>, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    submit_to(vm, ops, list, false, emit)
}

fn submit_to<'a>(
    vm: &'a Vm,
    ops: usize,
    list: usize,
    workers: bool,
    emit: impl Fn(&mut Sink<'a>, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut at_once = match (list, workers) {
        (1, true) => Some(Sink::Workers(vm)),
        (1, false) => Some(Sink::Streams { vm, lane: None }),
        _ => None,
    };
    let mut made = None;
    for first in (0..ops).step_by(list) {
        let sink = at_once.as_mut().unwrap_or_else(|| made.insert(Sink::list(workers)));
        // The only call of `emit`, so that the compiler inlines it into this loop.
        for op in first..ops.min(first + list) {
            emit(sink, op)?;
        }
        if let Some(Sink::List(builder) | Sink::WorkerList(builder)) = made.take() {
            vm.submit(builder.finish())?;
        }
    }
    Ok(())
}

/// Emits the operation of a number over variables.
pub trait Emit: for<'a> Fn(&mut Sink<'a>, &'a [Var], usize) -> Result<(), Error> {}

impl<E: for<'a> Fn(&mut Sink<'a>, &'a [Var], usize) -> Result<(), Error>> Emit for E {}

/// A workload and the engine that it runs on.
pub struct Graph<E> {
    workload: &'static str,
    vm: Vm,
    variables: Vec<Var>,
    emit: E,
    workers: bool,
}

impl Graph<()> {
    /// One variable that every operation reads and writes.
    pub fn chain(vm: Vm) -> Graph<impl Emit> {
        Graph::new("chain", vm, 1, |sink, variables, _| sink.empty([variables[0].update()]))
    }

    /// One variable that every operation reads and writes, each on the next of `lanes`.
    pub fn crossing(vm: Vm, lanes: usize) -> Graph<impl Emit> {
        Graph::new("crossing", vm, 1, move |sink, variables, op| {
            sink.empty_on((op % lanes) as u32, [variables[0].update()])
        })
    }

    /// Operations that each write their own variable, round robin.
    pub fn independent(vm: Vm) -> Graph<impl Emit> {
        Graph::new("independent", vm, INDEPENDENT_VARIABLES, |sink, variables, op| {
            sink.empty([variables[op % INDEPENDENT_VARIABLES].write()])
        })
    }

    /// As [`Graph::independent`] over `count` variables, with each operation on the next of `lanes`; this costs two more divisions per
    /// operation. A variable stays on one lane if `lanes` divides `count`.
    pub fn independent_over(vm: Vm, count: usize, lanes: usize) -> Graph<impl Emit> {
        Graph::new("independent", vm, count, move |sink, variables, op| {
            sink.empty_on((op % lanes) as u32, [variables[op % count].write()])
        })
    }

    /// Operations over `operands` of at least as many variables as the independent workload has: each writes one and reads the others.
    pub fn operands(vm: Vm, operands: usize) -> Graph<impl Emit> {
        let count = INDEPENDENT_VARIABLES.max(operands);
        Graph::new("operands", vm, count, move |sink, variables, op| {
            let variable = |operand: usize| &variables[(op * operands + operand) % count];
            let reads = (1..operands).map(|operand| variable(operand).read());
            sink.empty(reads.chain([variable(0).write()]))
        })
    }

    /// `ops` operations with random reads and writes, each on the next of `lanes`.
    pub fn random(vm: Vm, ops: usize, lanes: usize) -> Graph<impl Emit> {
        let ops = random_ops(ops);
        Graph::new("random", vm, VARIABLES, move |sink, variables, op| {
            sink.empty_on((op % lanes) as u32, uses_of(variables, &ops[op]))
        })
    }

    /// `ops` operations with random reads and writes, each of which works for 1 to 9 µs.
    pub fn irregular(vm: Vm, ops: usize) -> Graph<impl Emit> {
        let ops = random_ops(ops);
        Graph::new("irregular", vm, VARIABLES, move |sink, variables, op| {
            let steps = steps_of(op);
            sink.call("works", uses_of(variables, &ops[op]), move || work(steps))
        })
    }

    /// Rounds of one write on the first lane, then reads, each on the next of `lanes`.
    pub fn fan(vm: Vm, lanes: usize) -> Graph<impl Emit> {
        Graph::new("fan", vm, 1, move |sink, variables, op| match op % ROUND {
            0 => sink.empty_on(0, [variables[0].write()]),
            reader => sink.empty_on((reader % lanes) as u32, [variables[0].read()]),
        })
    }
}

/// New variables.
pub(crate) fn variables(vm: &Vm, count: usize) -> Vec<Var> {
    (0..count).map(|_| vm.var()).collect()
}

impl<E: for<'a> Fn(&mut Sink<'a>, &'a [Var], usize) -> Result<(), Error>> Graph<E> {
    /// A workload over `count` new variables.
    fn new(workload: &'static str, vm: Vm, count: usize, emit: E) -> Graph<E> {
        Graph { workload, variables: variables(&vm, count), vm, emit, workers: false }
    }

    /// Emits the first `ops` operations in lists of `list`, or by calls that need no list if `list` is 1; waits for all, and returns the
    /// time per operation in ns.
    ///
    /// # Errors
    /// The engine failed, or ran another number of instructions.
    pub fn run(&self, ops: usize, list: usize) -> Result<f64, Error> {
        let before = self.instructions();
        let start = Instant::now();
        submit_to(&self.vm, ops, list, self.workers, |sink, op| (self.emit)(sink, &self.variables, op))?;
        self.vm.wait_all()?;
        let ns = start.elapsed().as_nanos() as f64 / ops as f64;
        let ran = self.instructions() - before;
        if ran != ops as u64 {
            return Err(Error::Wrong { workload: self.workload, found: format!("{ran} instructions, not {ops}") });
        }
        Ok(ns)
    }

    /// The same workload on workers, which run each operation as soon as its dependences are satisfied.
    #[must_use]
    pub fn on_workers(mut self) -> Graph<E> {
        self.workers = true;
        self
    }

    /// [`Graph::run`] of `ops` operations, after `warm_up` operations to warm up.
    fn sample(&self, metric: &str, (warm_up, ops): (usize, usize), list: usize) -> Result<Sample, Error> {
        self.run(warm_up, list)?;
        Ok(Sample::ns(metric, self.run(ops, list)?))
    }

    /// The engine.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    fn instructions(&self) -> u64 {
        self.vm.stats().streams.iter().map(|stream| stream.instructions).sum()
    }
}

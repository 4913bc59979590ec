//! Workloads that are graphs of empty functions: what remains is the engine.
//!
//! The clock runs from the first call of the builder to the end of the last instruction: building, submitting, running.

use std::sync::mpsc;
use std::time::Instant;

use streamvm::{BuildError, InstructionsBuilder, LaneGuard, Use, Var, Vm, current_lane};

use super::DEVICE;
use crate::case::{Sample, Sizes};
use crate::error::Error;
use crate::generate::{RandomOp, VARIABLES, random_ops, steps_of, work};

/// Instructions of a list, where nothing else is said.
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
    lists_and_single(&Graph::chain(engine()?), sizes)
}

/// Operations that each write their own variable, round robin: in lists, and one operation a submission.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    lists_and_single(&Graph::independent(engine()?), sizes)
}

/// Random reads and writes: in lists on one lane, with each operation on the next of four, and one operation a
/// submission on one lane.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn random(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let measured = |lanes: usize, list: usize| -> Result<f64, Error> {
        let graph = Graph::random(engine()?, sizes.random, lanes);
        graph.run(sizes.warm_up().random, list)?;
        graph.run(sizes.random, list)
    };
    Ok(vec![
        Sample::ns("ns_per_op_one_lane", measured(1, LIST)?),
        Sample::ns("ns_per_op_four_lanes", measured(4, LIST)?),
        Sample::ns("ns_per_op_single", measured(1, 1)?),
    ])
}

/// One write, then 64 reads, each list one such round: on one lane, with each read on the next of two, and one operation
/// a submission on one lane.
///
/// # Errors
/// The engine failed, or ran another number of instructions.
pub fn fan(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let measured = |lanes: usize, list: usize| -> Result<f64, Error> {
        let graph = Graph::fan(engine()?, lanes);
        graph.run(sizes.warm_up().rounds * ROUND, list)?;
        graph.run(sizes.rounds * ROUND, list)
    };
    Ok(vec![
        Sample::ns("ns_per_op_one_lane", measured(1, ROUND)?),
        Sample::ns("ns_per_op_two_lanes", measured(2, ROUND)?),
        Sample::ns("ns_per_op_single", measured(1, 1)?),
    ])
}

fn lists_and_single<E: Emit>(graph: &Graph<E>, sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (metric, list) in [("ns_per_op_lists_of_64", LIST), ("ns_per_op_single", 1)] {
        graph.run(sizes.warm_up().ops, list)?;
        samples.push(Sample::ns(metric, graph.run(sizes.ops, list)?));
    }
    Ok(samples)
}

fn engine() -> Result<Vm, Error> {
    Ok(Vm::builder().build()?)
}

/// An instruction that does not end before what is returned is dropped.
pub(crate) fn blocked(builder: &mut InstructionsBuilder, held: Use<'_>) -> Result<mpsc::Sender<()>, BuildError> {
    let (release, released) = mpsc::channel();
    builder.call_fn("blocked", DEVICE, [held], move |_| {
        // An error means that the sender is gone, which is the sign to go on.
        let _ = released.recv();
        Ok(())
    })?;
    Ok(release)
}

/// Where operations go: into a list, or to the engine one by one, by the calls that a program makes.
pub enum Sink<'a> {
    /// Into a list.
    List(InstructionsBuilder),
    /// To the engine's streams.
    Streams {
        /// The engine.
        vm: &'a Vm,
        /// The lane, where it is not that of the thread.
        lane: Option<LaneGuard>,
    },
    /// To the engine's workers.
    Workers(&'a Vm),
}

impl Sink<'_> {
    /// The lane of what follows.
    pub fn set_lane(&mut self, number: u32) {
        match self {
            Sink::List(builder) => builder.set_lane(number),
            Sink::Streams { lane, .. } if current_lane() != number => {
                *lane = None;
                *lane = Some(streamvm::lane(number));
            }
            Sink::Streams { .. } | Sink::Workers(_) => {}
        }
    }

    /// An operation that runs `f`.
    ///
    /// # Errors
    /// It cannot be built; the engine failed.
    #[inline(always)]
    pub fn call<'u>(
        &mut self,
        name: &'static str,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let Sink::List(builder) = self else { return self.call_at_once(name, uses, f) };
        builder.call_fn(name, DEVICE, uses, move |_| {
            f();
            Ok(())
        })?;
        Ok(())
    }

    /// Apart, so that a program that makes lists needs no room for what this does.
    #[inline(never)]
    fn call_at_once<'u>(
        &mut self,
        name: &'static str,
        uses: impl IntoIterator<Item = Use<'u>>,
        f: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let function = move || {
            f();
            Ok(())
        };
        match self {
            Sink::List(_) => unreachable!("a list takes it itself"),
            Sink::Streams { vm, .. } => drop(vm.call_fn(name, DEVICE, uses, move |_| function())?),
            Sink::Workers(vm) => drop(vm.push(name, uses, function)?),
        }
        Ok(())
    }

    /// An operation that does nothing.
    ///
    /// # Errors
    /// As [`Sink::call`].
    #[inline(always)]
    pub fn empty<'u>(&mut self, uses: impl IntoIterator<Item = Use<'u>>) -> Result<(), Error> {
        self.call("empty", uses, || ())
    }
}

fn uses_of<'a>(variables: &'a [Var], op: &'a RandomOp) -> impl Iterator<Item = Use<'a>> {
    let reads = op.reads().iter().map(|read| variables[*read as usize].read());
    reads.chain([variables[op.write as usize].write()])
}

/// Emits the operation of a number.
pub trait Emit: Fn(&mut Sink<'_>, usize) -> Result<(), Error> {}

impl<E: Fn(&mut Sink<'_>, usize) -> Result<(), Error>> Emit for E {}

/// Emits operations from 0 to `ops` in lists of `list`, and submits each; of 1, by calls that need no list.
///
/// # Errors
/// An operation cannot be built; the engine failed.
pub fn submit(vm: &Vm, ops: usize, list: usize, emit: &impl Emit) -> Result<(), Error> {
    submit_to(vm, ops, list, false, emit)
}

fn submit_to(vm: &Vm, ops: usize, list: usize, workers: bool, emit: &impl Emit) -> Result<(), Error> {
    let mut at_once = match (list, workers) {
        (1, true) => Some(Sink::Workers(vm)),
        (1, false) => Some(Sink::Streams { vm, lane: None }),
        _ => None,
    };
    let mut made = None;
    for first in (0..ops).step_by(list) {
        let sink = at_once.as_mut().unwrap_or_else(|| {
            let mut builder = InstructionsBuilder::new();
            builder.set_workers(workers);
            made.insert(Sink::List(builder))
        });
        // In one place for all, so that it is compiled into the loop.
        for op in first..ops.min(first + list) {
            emit(sink, op)?;
        }
        if let Some(Sink::List(builder)) = made.take() {
            vm.submit(builder.finish())?;
        }
    }
    Ok(())
}

/// A workload on an engine.
pub struct Graph<E> {
    workload: &'static str,
    vm: Vm,
    emit: E,
    workers: bool,
}

impl Graph<()> {
    /// One variable that every operation reads and writes.
    pub fn chain(vm: Vm) -> Graph<impl Emit> {
        let variable = vm.var();
        let emit = move |sink: &mut Sink<'_>, _| sink.empty([variable.update()]);
        Graph { workload: "chain", vm, emit, workers: false }
    }

    /// One variable that every operation reads and writes, each on the next of `lanes`.
    pub fn crossing(vm: Vm, lanes: usize) -> Graph<impl Emit> {
        let variable = vm.var();
        let emit = move |sink: &mut Sink<'_>, op: usize| {
            sink.set_lane((op % lanes) as u32);
            sink.empty([variable.update()])
        };
        Graph { workload: "crossing", vm, emit, workers: false }
    }

    /// Operations that each write their own variable, round robin.
    pub fn independent(vm: Vm) -> Graph<impl Emit> {
        let variables = variables(&vm, INDEPENDENT_VARIABLES);
        let emit = move |sink: &mut Sink<'_>, op: usize| sink.empty([variables[op % INDEPENDENT_VARIABLES].write()]);
        Graph { workload: "independent", vm, emit, workers: false }
    }

    /// The same over `count` variables, each operation on the next of `lanes`: two divisions an operation more. A variable
    /// stays on its lane where `lanes` divides `count`.
    pub fn independent_over(vm: Vm, count: usize, lanes: usize) -> Graph<impl Emit> {
        let variables = variables(&vm, count);
        let emit = move |sink: &mut Sink<'_>, op: usize| {
            sink.set_lane((op % lanes) as u32);
            sink.empty([variables[op % count].write()])
        };
        Graph { workload: "independent", vm, emit, workers: false }
    }

    /// Operations over `operands` of the independent workload's variables: each writes one and reads the others.
    pub fn operands(vm: Vm, operands: usize) -> Graph<impl Emit> {
        let variables = variables(&vm, INDEPENDENT_VARIABLES);
        let emit = move |sink: &mut Sink<'_>, op: usize| {
            let variable = |operand: usize| &variables[(op * operands + operand) % INDEPENDENT_VARIABLES];
            let reads = (1..operands).map(|operand| variable(operand).read());
            sink.empty(reads.chain([variable(0).write()]))
        };
        Graph { workload: "operands", vm, emit, workers: false }
    }

    /// `ops` operations with random reads and writes, each on the next of `lanes`.
    pub fn random(vm: Vm, ops: usize, lanes: usize) -> Graph<impl Emit> {
        let (variables, ops) = (variables(&vm, VARIABLES), random_ops(ops));
        let emit = move |sink: &mut Sink<'_>, op: usize| {
            sink.set_lane((op % lanes) as u32);
            sink.empty(uses_of(&variables, &ops[op]))
        };
        Graph { workload: "random", vm, emit, workers: false }
    }

    /// `ops` operations with random reads and writes, each of which works for 1 to 9 µs.
    pub fn irregular(vm: Vm, ops: usize) -> Graph<impl Emit> {
        let (variables, ops) = (variables(&vm, VARIABLES), random_ops(ops));
        let emit = move |sink: &mut Sink<'_>, op: usize| {
            let steps = steps_of(op);
            sink.call("works", uses_of(&variables, &ops[op]), move || work(steps))
        };
        Graph { workload: "irregular", vm, emit, workers: false }
    }

    /// Rounds of one write on the first lane, then reads, each on the next of `lanes`.
    pub fn fan(vm: Vm, lanes: usize) -> Graph<impl Emit> {
        let variable = vm.var();
        let emit = move |sink: &mut Sink<'_>, op: usize| match op % ROUND {
            0 => {
                sink.set_lane(0);
                sink.empty([variable.write()])
            }
            reader => {
                sink.set_lane((reader % lanes) as u32);
                sink.empty([variable.read()])
            }
        };
        Graph { workload: "fan", vm, emit, workers: false }
    }
}

/// Fresh variables.
pub(crate) fn variables(vm: &Vm, count: usize) -> Vec<Var> {
    (0..count).map(|_| vm.var()).collect()
}

impl<E: Emit> Graph<E> {
    /// Emits the first `ops` operations in lists of `list`, waits for all, and gives the time of one in ns.
    ///
    /// # Errors
    /// The engine failed, or ran another number of instructions.
    pub fn run(&self, ops: usize, list: usize) -> Result<f64, Error> {
        let before = self.instructions();
        let start = Instant::now();
        submit_to(&self.vm, ops, list, self.workers, &self.emit)?;
        self.vm.wait_all()?;
        let ns = start.elapsed().as_nanos() as f64 / ops as f64;
        let ran = self.instructions() - before;
        if ran != ops as u64 {
            return Err(Error::Wrong { workload: self.workload, found: format!("{ran} instructions, not {ops}") });
        }
        Ok(ns)
    }

    /// The same on workers, which run each operation as soon as what it uses is ready.
    #[must_use]
    pub fn on_workers(self) -> Graph<E> {
        Graph { workers: true, ..self }
    }

    /// The engine.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    fn instructions(&self) -> u64 {
        self.vm.stats().streams.iter().map(|stream| stream.instructions).sum()
    }
}

//! Long lists: the time of each line, for the shapes of lists in which something could be searched for each line.

use std::io;
use std::time::{Duration, Instant};

use streamvm::stream::{StreamKey, StreamType};
use streamvm::{DType, Error as EngineError, InstructionList, InstructionsBuilder, Vm, VmBuilder};

use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::workloads::DEVICE;
use crate::workloads::generate::{VARIABLES, random_ops};
use crate::workloads::graph::{uses_of, variables};

/// Most rounds of a measurement.
const ROUNDS: usize = 20;

/// Elements of a tensor, f32: one block of the smallest size.
const ELEMENTS: [usize; 1] = [16];

/// Makes a list of about so many lines.
type Shape = fn(&Vm, usize) -> Result<InstructionList, Error>;

/// The shapes by name, each with whether the engine detects races and records a trace.
const SHAPES: [(&str, bool, Shape); 7] = [
    ("workers, then in turn with a stream", false, worker_lines_then_alternating),
    ("critical sections", false, sections),
    ("memory released and taken again", false, releases),
    ("events and waits", false, events),
    ("skipped lines", false, skipped),
    ("recorded: events and waits", true, events),
    ("recorded: random", true, random),
];

/// The time of each line, from the submission of its list until the list has passed, for each shape of a list of `lines` lines.
///
/// # Errors
/// A list cannot be built, or the engine refused it.
pub fn lists(lines: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let rounds = (ops / lines).clamp(1, ROUNDS);
    let of_shape = |(name, recorded, shape): (&str, bool, Shape)| {
        let builder = if recorded { Vm::builder().detect_races(true).record(io::sink()) } else { Vm::builder() };
        Ok(Sample::ns(name, time_of_line(builder, shape, lines, rounds)?))
    };
    SHAPES.into_iter().map(of_shape).collect()
}

fn time_of_line(builder: VmBuilder, shape: Shape, lines: usize, rounds: usize) -> Result<f64, Error> {
    let vm = builder.build()?;
    let mut total = Duration::ZERO;
    for round in 0..=rounds {
        let list = shape(&vm, lines)?;
        let start = Instant::now();
        match vm.submit(list)?.wait() {
            // One of the shapes has lines that fail.
            Ok(()) | Err(EngineError::Failed(_)) => {}
            Err(error) => return Err(error.into()),
        }
        // The first round warms up.
        if round > 0 {
            total += start.elapsed();
        }
    }
    Ok(total.as_nanos() as f64 / (rounds * lines) as f64)
}

/// Functions on workers; in the second half of the list, in turn with functions on a stream.
fn worker_lines_then_alternating(_: &Vm, lines: usize) -> Result<InstructionList, Error> {
    let mut builder = InstructionsBuilder::new();
    for line in 0..lines {
        if line < lines / 2 || line % 2 == 0 {
            builder.on_workers().call_fn("empty", DEVICE, [], |_| Ok(()))?;
        } else {
            builder.call_fn("empty", DEVICE, [], |_| Ok(()))?;
        }
    }
    Ok(builder.finish())
}

/// Critical sections over one resource, with one function in each.
fn sections(vm: &Vm, lines: usize) -> Result<InstructionList, Error> {
    let (critical, mut builder) = (vm.critical("shared"), InstructionsBuilder::new());
    for _ in 0..lines.div_ceil(3) {
        let section = builder.begin_section(&[&critical], &[])?;
        builder.call_fn("empty", DEVICE, [], |_| Ok(()))?;
        builder.end_section(section, &[]);
    }
    Ok(builder.finish())
}

/// Fills of new tensors, the releases of these, and fills of new tensors again.
fn releases(_: &Vm, lines: usize) -> Result<InstructionList, Error> {
    let mut builder = InstructionsBuilder::new();
    let mut tensors = Vec::new();
    let third = lines.div_ceil(3);
    for _ in 0..third {
        tensors.push(builder.full(DEVICE, DType::F32, &ELEMENTS, 1)?);
    }
    tensors.iter().for_each(|tensor| builder.release(tensor));
    for _ in 0..third {
        builder.full(DEVICE, DType::F32, &ELEMENTS, 2)?;
    }
    Ok(builder.finish())
}

/// Events that one lane records and another waits for.
fn events(_: &Vm, lines: usize) -> Result<InstructionList, Error> {
    let mut builder = InstructionsBuilder::new();
    let [source, target] = [0, 1].map(|lane| StreamKey::new(DEVICE, StreamType::Compute, lane));
    for _ in 0..lines.div_ceil(2) {
        let event = builder.record(source);
        builder.wait(target, source, &event);
    }
    Ok(builder.finish())
}

/// Functions that are skipped, because the one before has failed or was skipped.
fn skipped(vm: &Vm, lines: usize) -> Result<InstructionList, Error> {
    let (variable, mut builder) = (vm.var(), InstructionsBuilder::new());
    builder.call_fn("fails", DEVICE, [variable.write()], |_| Err("it always fails".into()))?;
    for _ in 1..lines {
        builder.call_fn("skipped", DEVICE, [variable.update()], |_| Ok(()))?;
    }
    Ok(builder.finish())
}

/// Functions with random reads and writes, on four lanes in turn.
fn random(vm: &Vm, lines: usize) -> Result<InstructionList, Error> {
    let (variables, mut builder) = (variables(vm, VARIABLES), InstructionsBuilder::new());
    for (lane, op) in (0..4).cycle().zip(&random_ops(lines)) {
        builder.on_lane(lane).call_fn("empty", DEVICE, uses_of(&variables, op), |_| Ok(()))?;
    }
    Ok(builder.finish())
}

//! Pass: order that no bytes tell: of functions, and of steps that the recording has ordered.
//!
//! * Functions of one device are called in the order of the program, because eager calls would be on one stream; those on workers are ordered by their
//!   uses alone. One without operands is for
//!   its effects alone: it comes after all earlier steps on the compute streams of its device, and before all later ones, as a touch does. A block is ordered
//!   as the functions in it are: the steps of a block run in their order, so the order of functions within it needs nothing.
//! * Each later step of a [`StepOrder`](crate::StepOrder) comes after the earlier ones. Only those of the earlier units which no other of them comes
//!   after are noted, and only for those of the later units which come after no other of them: the rest follows. A removed step orders nothing.
//!   Between steps that are independent of each other that are as many edges as pairs, so their number is bounded.

use std::ops::Range;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::DeviceId;
use streamvm_instructions::{Error, ProgramError};
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::by_others::{self, RunsOn};
use crate::compile::lists::Lists;
use crate::ir::function::FunctionOrder;
use crate::ir::program::{Program, Step, Work};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// How many units and edges the orders of a program may have together. It bounds the compiler to a second or two and some hundred megabytes.
const MOST_WORK: usize = 1 << 24;

/// For each unit earlier ones that it must come after, ascending.
#[derive(Debug)]
pub(super) struct Dependences {
    /// All of them.
    pub(super) all: Lists<usize>,
    /// Those that no bytes tell: the engine must be told.
    pub(super) explicit: Lists<usize>,
}

/// Adds the order that no bytes tell to the dependences by bytes.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if orders between independent steps have too many edges.
pub(super) fn add(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    streams: &[StreamKey],
    by_bytes: Lists<usize>,
    options: &CompileOptions,
) -> Result<Dependences, Error> {
    let has_functions = program.steps.iter().any(|step| in_order_of(step).is_some());
    if !has_functions && program.orders.is_empty() {
        return Ok(Dependences { all: by_bytes, explicit: Lists::empty(units.len()) });
    }
    let mut explicit = vec![Vec::new(); units.len()];
    if has_functions {
        functions(program, kept, units, streams, &mut explicit);
    }
    if !options.has(Mutant::OrderDropped) {
        recorded_orders(program, kept, units, &by_bytes, &mut explicit)?;
    }
    let (mut all_lists, mut explicit_lists) = (Lists::with_capacity(units.len()), Lists::with_capacity(units.len()));
    let mut all: Vec<usize> = Vec::new();
    for (by_bytes, mut explicit) in by_bytes.iter().zip(explicit) {
        explicit.sort_unstable();
        explicit.dedup();
        all.extend(by_bytes.iter().chain(&explicit));
        all.sort_unstable();
        all.dedup();
        all_lists.push(all.drain(..));
        explicit_lists.push(explicit);
    }
    Ok(Dependences { all: all_lists, explicit: explicit_lists })
}

/// The device in whose order on its lane a step runs, if it is a function that is called in that order, or a touch.
fn in_order_of(step: &Step) -> Option<DeviceId> {
    match &step.work {
        Work::Function(function) => Some(function.device()).filter(|_| function.order() != FunctionOrder::Workers),
        Work::Touch(device) => Some(*device),
        _ => None,
    }
}

/// The units of one compute or collective stream that order its functions.
#[derive(Default)]
struct Called {
    last: Option<usize>,
    /// The last one without operands.
    last_alone: Option<usize>,
    /// The units on that stream since then.
    since: Vec<usize>,
}

fn functions(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    streams: &[StreamKey],
    explicit: &mut [Vec<usize>],
) {
    let mut called_on: HashMap<StreamKey, Called> = HashMap::new();
    let host = by_others::host_device(program);
    for (unit, (positions, stream)) in units.iter().zip(streams).enumerate() {
        if !matches!(stream.stream_type, StreamType::Compute | StreamType::Collective) {
            continue;
        }
        let steps = || kept[positions.clone()].iter().map(|&number| &program.steps[number]);
        // A block may have steps of CPUs beside those of its stream: eager calls would be on the streams of these CPUs.
        let mut all_of: SmallVec<[StreamKey; 2]> = SmallVec::from_iter([*stream]);
        let is_block = positions.len() > 1;
        for step in steps().filter(|_| is_block) {
            if let RunsOn::Host(device) = by_others::runs_on(program, step, host)
                && let of_step = (StreamKey { device, ..*stream })
                && !all_of.contains(&of_step)
            {
                all_of.push(of_step);
            }
        }
        for stream in all_of {
            let called = called_on.entry(stream).or_default();
            explicit[unit].extend(called.last_alone);
            let of_stream = |step: &&Step| in_order_of(step) == Some(stream.device);
            let (mut calls, mut calls_alone) = (false, false);
            for step in steps().filter(of_stream) {
                calls = true;
                calls_alone |= step.operands.is_empty() || matches!(step.work, Work::Touch(_));
            }
            if calls {
                explicit[unit].extend(called.last.replace(unit));
            }
            if calls_alone {
                explicit[unit].append(&mut called.since);
                called.last_alone = Some(unit);
            } else {
                called.since.push(unit);
            }
        }
    }
}

fn recorded_orders(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    by_bytes: &Lists<usize>,
    explicit: &mut [Vec<usize>],
) -> Result<(), Error> {
    // The units that have one of these steps.
    let units_of = |steps: &Range<usize>| {
        let first = kept.partition_point(|&number| number < steps.start);
        let end = kept.partition_point(|&number| number < steps.end);
        let begin = units.partition_point(|positions| positions.end <= first);
        begin..units.partition_point(|positions| positions.start < end).max(begin)
    };
    let mut work = 0;
    for order in &program.orders {
        let (earlier, later) = (units_of(&order.earlier), units_of(&order.later));
        work += earlier.len() + later.len();
        let mut is_last = vec![true; earlier.len()];
        for unit in earlier.clone() {
            let within = by_bytes[unit].iter().filter(|other| earlier.contains(other));
            within.for_each(|other| is_last[other - earlier.start] = false);
        }
        let lasts: Vec<usize> = earlier.clone().filter(|unit| is_last[unit - earlier.start]).collect();
        // A block is one unit: what is ordered within it runs in the order of the program.
        let firsts = later.clone().filter(|&unit| !by_bytes[unit].iter().any(|other| later.contains(other)));
        for unit in firsts {
            work += lasts.len();
            if work > MOST_WORK {
                return Err(too_many(program, order.later.start));
            }
            explicit[unit].extend(lasts.iter().filter(|&&other| other < unit));
        }
    }
    Ok(())
}

fn too_many(program: &Program, number: usize) -> Error {
    let what = format!(
        "is ordered behind too many steps: orders between steps that are independent of each other have more than {MOST_WORK} edges; order a function \
         without uses behind the earlier steps, and the later ones behind that"
    );
    let step = Some(program.steps[number].named(number));
    ProgramError::NotCompiled { program: program.name.clone(), step, what }.into()
}

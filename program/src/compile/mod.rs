//! Compiling: from a program to steps over buffers at fixed offsets.
//!
//! Layer: uses `ir`, `memory`, `plan` and `show`; is used by no other folder.
//!
//! [`compile`] is a pure function: the same program and options give the same result on every machine. Its passes, in this order, each a
//! file with one idea:
//!
//! | pass | what it does |
//! |---|---|
//! | [`fetched_copies`] | gives each fetch of a feed or parameter a value of its own |
//! | [`unfetched`] | removes steps whose results no fetch, no parameter and no later step needs |
//! | [`streams`] | finds the stream of each step; refuses what cannot be compiled |
//! | [`units`] | finds which steps must come after which, by the bytes that they use |
//! | [`order`] | adds the order of functions, and the one that the recording asks for |
//! | [`lanes`] | spreads compute steps over several lanes of a device, if asked to |
//! | [`homes`] | finds which values share an arena, by the streams that use them |
//! | [`segments`] | divides the steps into segments of one stream, which run as one instruction each |
//! | [`merge`] | merges segments of several lanes of a device into one: one graph of a GPU, threads side by side on a CPU |
//! | [`lifetimes`] | finds between which steps each value lives |
//! | [`in_place`] | lets an elementwise step write over an input that ends there |
//! | [`fuse`] | finds elementwise steps that run together, block by block, and the values that only they use |
//! | [`arena`] | gives the values of a run offsets in the arenas |
//! | [`emit`] | writes down buffers, steps and segments |
//!
//! Tables that several passes use: [`by_others`] tells which steps of blocks another one runs than the device of the segment, [`value_uses`] has the values of each step, [`lists`] holds a list for each of many things, [`users`] tells which user is the
//! only one. For [`units`], [`whole_uses`] and [`pieces`] note which units have used the bytes of a value.
//!
//! [`compile_reporting`] also tells what each pass did ([`trace`]).

mod arena;
#[cfg(test)]
mod block_function_tests;
#[cfg(test)]
mod block_tests;
mod by_others;
mod emit;
mod extents;
mod fetched_copies;
mod for_fetches;
#[cfg(test)]
mod function_tests;
mod fuse;
#[cfg(test)]
mod fuse_tests;
mod homes;
mod in_place;
mod lanes;
mod lifetimes;
mod lists;
mod merge;
#[cfg(test)]
mod merge_tests;
mod order;
mod pieces;
#[cfg(test)]
mod section_tests;
mod segments;
mod streams;
#[cfg(test)]
mod tests;
mod unfetched;
mod units;
mod users;
mod value_uses;
mod whole_uses;

use std::ops::Range;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use streamvm_ep::{DeviceKind, Site};
use streamvm_instructions::Error;
use streamvm_stream::{StreamKey, StreamType};

use crate::ir::program::{Program, ValueId, Work};
use crate::plan::compiled::{Compiled, OtherPart, OtherRole};
use crate::plan::options::CompileOptions;
use crate::show::trace::{self, PassReport, Trace};

/// Compiles a program, which the result shares. Needs no engine and no device. Takes time and memory in proportion to the steps and their operands, apart from
/// planning memory: first fit looks at all values that live at one time, up to 30,000 of them, and [`CompileOptions::search_steps`] bounds the
/// search.
///
/// # Errors
/// [`ProgramError::Malformed`](streamvm_instructions::ProgramError::Malformed) and
/// [`ProgramError::NotCompiled`](streamvm_instructions::ProgramError::NotCompiled), which name the step.
#[track_caller]
pub fn compile(program: impl Into<Arc<Program>>, options: &CompileOptions) -> Result<Compiled, Error> {
    let site = Site::caller();
    run_passes(program.into(), options, Trace::default()).map_err(|error| error.called_from(site))
}

/// [`compile`], which also calls `report` after each pass with what the pass did.
///
/// # Errors
/// Those of [`compile`]; the passes before the one that fails are reported.
#[track_caller]
pub fn compile_reporting(
    program: impl Into<Arc<Program>>,
    options: &CompileOptions,
    report: &mut dyn FnMut(PassReport),
) -> Result<Compiled, Error> {
    let site = Site::caller();
    run_passes(program.into(), options, Trace::new(report)).map_err(|error| error.called_from(site))
}

fn run_passes(mut program: Arc<Program>, options: &CompileOptions, mut trace: Trace<'_>) -> Result<Compiled, Error> {
    program.check()?;
    trace.note(|| trace::check(&program));
    let recorded = program.steps.len();
    fetched_copies::insert(&mut program)?;
    trace.note(|| trace::fetched_copies(&program, recorded));
    let uses = value_uses::of(&program);
    let kept = unfetched::kept_steps(&program, &uses, options);
    trace.note(|| trace::unfetched(&program, &kept));
    let Divided { order, segments, in_order, homes, arenas: arenas_of, shared, functions_join } =
        divide(&program, &kept, &uses, options, &mut trace)?;
    let mut lifetimes = lifetimes::of(&program, &order, &uses, options);
    for (value, segment) in shared {
        // Lanes have no order that positions tell.
        lifetimes[value.0] = in_order.ranges[segment].clone();
    }
    trace.note(|| trace::lifetimes(&program, &lifetimes));
    let in_place = || in_place::find(&program, &order, &homes, &lifetimes, options);
    let shares = if options.in_place { in_place() } else { in_place::none(&program) };
    trace.note(|| trace::in_place(&program, &shares));
    let host_device = by_others::host_device(&program);
    let others: Vec<Vec<OtherPart>> = segments
        .iter()
        .zip(&in_order.ranges)
        .map(|(segment, steps)| match segment.stream.device.kind.is_run_by_host() {
            true => Vec::new(),
            false => by_others::parts(&program, (host_device, segment.stream.device), &order, steps.clone()),
        })
        .collect();
    let fusable = segments.iter().zip(&others).enumerate().flat_map(|(number, (segment, others))| {
        let kind = segment.stream.device.kind;
        in_order.on_one_lane(number).flat_map(move |steps| by_kind(steps, kind, others))
    });
    let fused = if options.fuse && !options.check_finite && !options.step_by_step {
        fuse::find(&program, &order, fusable, &mut lifetimes, &shares, options)
    } else {
        fuse::none(&program)
    };
    let groups = fused.groups.iter().map(|group| &order[group.steps.clone()]);
    trace.note(|| trace::fuse(&program, groups, &fused.scratch));
    let arenas = arena::plan(&program, (&homes, arenas_of.len()), &lifetimes, &shares, &fused, options)?;
    let of_segments = segments.iter().map(|segment| !segment.branches.is_empty()).zip(in_order.ranges.iter().cloned());
    let users = homes::only_users(&order, &uses, of_segments, &homes, arenas_of.len());
    let (arenas, arenas_of) = arena::join(arenas, arenas_of, &users);
    trace.note(|| {
        let arenas = arenas.iter().map(|arena| (&arena.offsets[..], arena.bytes, arena.lower_bound));
        trace::arena(&program, arenas)
    });
    let found = emit::Found {
        functions_join,
        order: &order,
        uses: &uses,
        segments: &segments,
        in_order: &in_order,
        others: &others,
        homes: &homes,
        arenas_of: &arenas_of,
        arenas: &arenas,
    };
    let compiled = emit::emit(program, &found, fused, options)?;
    trace.note(|| trace::emit(compiled.buffers.len(), compiled.step_count(), &compiled.to_string()));
    Ok(compiled)
}

/// Divides steps of a segment, or of a branch, on a device of a kind into those that run on devices of one kind, with that.
fn by_kind(steps: Range<usize>, kind: DeviceKind, others: &[OtherPart]) -> Vec<(DeviceKind, Range<usize>)> {
    let mut found = Vec::new();
    let mut begin = steps.start;
    for part in others {
        found.push((kind, begin..part.steps.start));
        if part.role == OtherRole::Run {
            found.push((part.device.kind, part.steps.clone()));
        }
        begin = part.steps.end;
    }
    found.push((kind, begin..steps.end));
    found
}

/// Steps in segments.
struct Divided {
    /// The numbers of the steps, segment by segment.
    order: Vec<usize>,
    segments: Vec<segments::Draft>,
    /// The steps of each segment, and of its branches, as positions in the order.
    in_order: segments::Order,
    homes: Vec<homes::Home>,
    arenas: Vec<homes::ArenaOf>,
    /// Values that lanes of one segment give to each other, in an arena, with the segment.
    shared: Vec<(ValueId, usize)>,
    /// Functions are steps of segments; otherwise each that lies in no block is a segment by itself.
    functions_join: bool,
}

/// The passes from the kept steps to segments.
fn divide(
    program: &Program,
    kept: &[usize],
    uses: &lists::Lists<value_uses::ValueUse>,
    options: &CompileOptions,
    trace: &mut Trace<'_>,
) -> Result<Divided, Error> {
    let units = units::of(program, kept);
    let streams = streams::of(program, kept, &units)?;
    trace.note(|| trace::streams(&streams));
    let firsts = || units.iter().map(|unit| kept[unit.start]).collect::<Vec<usize>>();
    let one_stream = streams.iter().all(|stream| *stream == streams[0] && stream.stream_type == StreamType::Compute);
    let dependences = if one_stream && options.lanes <= 1 {
        trace.note(trace::no_dependences);
        let none = || lists::Lists::empty(units.len());
        order::Dependences { all: none(), explicit: none() }
    } else {
        let by_bytes = units::dependences(program, kept, uses, &units, options);
        let dependences = order::add(program, kept, &units, &streams, by_bytes, options)?;
        trace.note(|| trace::dependences(&firsts(), dependences.all.iter().zip(dependences.explicit.iter())));
        dependences
    };
    let by_host = streams.first().is_some_and(|stream| stream.device.kind.is_run_by_host());
    let may_join = one_stream && by_host && !options.step_by_step;
    // The threads that run the steps call the functions, too. If a program has several segments, another one may need the result of a step before a
    // function while the function waits for that segment. Between commands of a device, functions are called in blocks alone.
    let calls = kept.iter().any(|&number| program.steps[number].function().is_some());
    let into_segments = |spread: &lanes::Spread| {
        let given = |functions_join| merge::Given {
            program,
            kept,
            uses,
            units: &units,
            streams: &spread.streams,
            dependences: &dependences,
            options,
            functions_join,
        };
        let joined = may_join.then(|| into_segments(&given(true), &spread.order));
        let joined = joined.filter(|found| !calls || found.count() <= 1);
        let functions_join = joined.is_some();
        (joined.unwrap_or_else(|| into_segments(&given(false), &spread.order)), functions_join)
    };
    let spreads = lanes::spreads(program, kept, &units, &dependences.all, &streams, options);
    let (streams, (Segments { mut homes, mut arenas, divided, merged }, functions_join)) =
        shortest(spreads, if calls { 0 } else { lanes::hand_over(options) }, into_segments, |(found, _)| found.count());
    trace.note(|| trace::lanes(&firsts(), &streams, options.lanes));
    trace.note(|| {
        let in_order = segments::order(&divided, &units);
        trace::segments(described(&divided, &in_order))
    });
    let segments = merged.unwrap_or(divided);
    let of_homes = segments.iter().map(|segments::Draft { stream, units, branches, .. }| homes::SegmentOf {
        stream: *stream,
        units,
        has_branches: !branches.is_empty(),
    });
    let of_homes: Vec<homes::SegmentOf<'_>> = of_homes.collect();
    let shared = homes::share(program, kept, uses, &units, &of_homes, &mut homes, &mut arenas);
    let in_order = segments::order(&segments, &units);
    trace.note(|| {
        let lanes = segments.iter().map(|segment| segment.branches.iter().map(|branch| branch.lane).collect());
        trace::merge(described(&segments, &in_order).zip(lanes))
    });
    trace.note(|| {
        let used: HashSet<ValueId> = kept.iter().flat_map(|&number| &uses[number]).map(|it| it.value).collect();
        let homes = || homes.iter().enumerate().map(|(index, home)| (ValueId(index), *home));
        let homes = || homes().filter(|(value, _)| used.contains(value));
        let own = homes().filter(|(_, home)| *home == homes::Home::Own).map(|(value, _)| value);
        let in_arenas = homes().filter_map(|(value, home)| match home {
            homes::Home::Arena(arena) => Some((value, arena)),
            homes::Home::Own | homes::Home::Outside => None,
        });
        trace::homes(program, own, in_arenas)
    });
    let order: Vec<usize> = in_order.positions.iter().map(|&position| kept[position]).collect();
    Ok(Divided { order, segments, in_order, homes, arenas, shared, functions_join })
}

/// The way to spread the units whose time, with `begin` for each of its segments, is the shortest by estimate: its streams, and what it makes. With functions
/// of the caller, whose time is not known, segments count nothing: each function may be one, and may take long.
fn shortest<M>(
    spreads: Vec<lanes::Spread>,
    begin: u64,
    make: impl Fn(&lanes::Spread) -> M,
    segments: impl Fn(&M) -> usize,
) -> (Vec<StreamKey>, M) {
    let mut best: Option<(u64, Vec<StreamKey>, M)> = None;
    for spread in spreads {
        let is_shorter = |begins: usize, best: &Option<(u64, Vec<StreamKey>, M)>| {
            let time = spread.over.saturating_add(begin.saturating_mul(begins as u64));
            best.as_ref().is_none_or(|(shortest, ..)| time < *shortest).then_some(time)
        };
        // It has one segment at least, so one that cannot be shorter is not divided.
        if is_shorter(1, &best).is_some() {
            let made = make(&spread);
            if let Some(time) = is_shorter(segments(&made), &best) {
                best = Some((time, spread.streams, made));
            }
        }
    }
    let (_, streams, made) = best.unwrap_or_else(|| unreachable!("one lane is always a way"));
    (streams, made)
}

/// Segments, before and after the pass that merges them.
struct Segments {
    homes: Vec<homes::Home>,
    arenas: Vec<homes::ArenaOf>,
    divided: Vec<segments::Draft>,
    /// `None` if none were merged.
    merged: Option<Vec<segments::Draft>>,
}

impl Segments {
    fn count(&self) -> usize {
        self.merged.as_ref().unwrap_or(&self.divided).len()
    }
}

/// Divides the units, which can run in this order, and merges lanes.
fn into_segments(given: &merge::Given<'_>, by_unit: &[usize]) -> Segments {
    let merge::Given { program, kept, uses, units, streams, dependences, options, functions_join } = *given;
    let (homes, arenas) = homes::of(program, kept, uses, units, streams, (options.step_by_step, functions_join));
    let writes = |unit: usize, found: &mut dyn FnMut(ValueId)| {
        let outputs = value_uses::written(kept[units[unit].clone()].iter().flat_map(|&number| &uses[number]));
        outputs.filter(|value| !matches!(homes[value.0], homes::Home::Arena(_))).for_each(found);
    };
    let calls =
        |unit: usize| kept[units[unit].clone()].iter().any(|&number| program.steps[number].function().is_some());
    // A function beside other lanes is a branch by itself, so that what does not need it does not wait for it. A block that calls functions is a segment
    // by itself for that reason: blocks are in no branch. A touch is an instruction.
    let all_on_one_lane = functions_join && streams.iter().all(|stream| *stream == streams[0]);
    let touches = |unit: usize| matches!(program.steps[kept[units[unit].start]].work, Work::Touch(_));
    let alone = |unit: usize| options.step_by_step || !all_on_one_lane && calls(unit) || touches(unit);
    let declared = units::shared_uses(program, kept, uses, units, streams, &homes);
    let mut arenas_of: HashMap<StreamKey, usize> = HashMap::new();
    arenas.iter().for_each(|arena| *arenas_of.entry(arena.stream).or_default() += 1);
    let arenas_of = |stream: StreamKey| arenas_of.get(&stream).copied().unwrap_or(0);
    let division = segments::divide(by_unit, streams, dependences, options, &declared, (alone, arenas_of), writes);
    let merged = merge::merge(given, &division, &homes, &declared);
    Segments { homes, arenas, divided: division.segments, merged }
}

/// The stream of each segment, the number of its steps, and the segments that it waits for.
fn described<'d>(
    segments: &'d [segments::Draft],
    in_order: &'d segments::Order,
) -> impl Iterator<Item = (StreamKey, usize, &'d [usize])> {
    segments.iter().zip(&in_order.ranges).map(|(segment, range)| (segment.stream, range.len(), &segment.after[..]))
}

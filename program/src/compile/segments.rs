//! Pass: the segments of a program, which run as one instruction each.
//!
//! A segment has units of one stream. A unit joins the last segment of its stream, unless one of these holds; then it starts a new segment:
//!
//! 1. Joining would make the last segment wait for a further segment of another stream. A segment waits before its first step, so the steps that
//!    it has already would wait longer than they need.
//! 2. A segment of another stream already waits for the last segment, and would then wait longer.
//! 3. The last segment would write more buffers than an instruction may.
//! 4. The unit is an instruction of its own: a copy between two memories, or a function in a program of several segments, beside other lanes, or on a device that runs
//!    commands later; a block that calls functions, in such a program or beside other lanes; or each step runs by itself (`step_by_step`).
//! 5. The segment would declare more than its units of a value that several streams use, such as both columns between which another one lies, or a write
//!    of all of what is only read. Then other streams would wait for what no unit does.
//! 6. A critical section begins or ends in between: the units of a section are segments after its begin and before its end.
//!
//! So streams wait for each other where eager instructions would, and rules 1, 2 and 5 never divide a program of one stream.
//!
//! Segments are numbered in the order in which they begin; each waits for segments with smaller numbers only, so running them one after the
//! other is an order of the program.

use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use streamvm_ep::{Access, Footprint, MAX_WRITES};
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::extents::{self, join_exactly};
use crate::compile::lists::Lists;
use crate::compile::order::Dependences;
use crate::compile::units::Declared;
use crate::ir::program::ValueId;
use crate::plan::compiled::SegmentBranch;
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// Units that run as one instruction.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) stream: StreamKey,
    /// Its units, in the order in which they run.
    pub(super) units: Vec<usize>,
    /// The segments of other streams that it waits for. One that another segment of the list waits for is left out, as is one that an earlier
    /// segment of its own stream has waited for.
    pub(super) after: Vec<usize>,
    /// Segments that it waits for though no bytes tell, so that the engine must be told: found without what bytes tell. Copies of its own stream
    /// are among them.
    pub(super) waits: Vec<usize>,
    /// Its branches, if it runs on several lanes.
    pub(super) branches: Vec<DraftBranch>,
}

/// Units of a segment that run one after the other on one lane.
#[derive(Clone, Debug)]
pub(super) struct DraftBranch {
    /// Their range in the units of the segment.
    pub(super) units: Range<usize>,
    /// The lane, counted from 0 within the segment.
    pub(super) lane: usize,
    /// The branches of other lanes that it waits for.
    pub(super) after: Vec<usize>,
}

/// Segments, and what has passed when each of them runs.
#[derive(Debug)]
pub(super) struct Division {
    pub(super) segments: Vec<Draft>,
    pub(super) clocks: Vec<Clock>,
}

/// For each stream the last segment that has passed when a segment runs, as far as its waits and the order of its stream tell.
pub(super) type Clock = HashMap<StreamKey, usize>;

/// The latest of these segments, that come after all of them. `stream_of` has the stream of each, and `clock` is that of the segment which waits for
/// them; it is raised by what they have passed, of the streams that `tells` accepts.
pub(super) fn latest(
    after: &[usize],
    stream_of: impl Fn(usize) -> StreamKey,
    clocks: &[Clock],
    clock: &mut Clock,
    tells: impl Fn(StreamKey) -> bool,
) -> Vec<usize> {
    debug_assert!(
        after.last().is_none_or(|&last| last < clocks.len()),
        "a segment or branch waits only for earlier ones"
    );
    // The latest first: what it waited for needs no wait of its own.
    let mut needed = Vec::new();
    for &earlier in after.iter().rev() {
        let of = stream_of(earlier);
        if clock.get(&of).is_none_or(|passed| *passed < earlier) {
            needed.push(earlier);
            clocks[earlier].iter().for_each(|(of, passed)| raise(clock, *of, *passed));
            if tells(of) {
                raise(clock, of, earlier);
            }
        }
    }
    needed.reverse();
    needed
}

/// Divides the units, which are given in an order in which they can run, each with its stream, and the units that each comes after.
///
/// * `uses` has what each unit declares of values that several streams use.
/// * `alone` tells of a unit whether it is a segment by itself.
/// * `arenas` tells how many arenas the values of a stream are in.
/// * `writes` calls its function with each value that a unit writes and that has a buffer of its own.
pub(super) fn divide(
    order: &[usize],
    streams: &[StreamKey],
    dependences: &Dependences,
    options: &CompileOptions,
    uses: &Lists<Declared>,
    (alone, arenas): (impl Fn(usize) -> bool, impl Fn(StreamKey) -> usize),
    writes: impl Fn(usize, &mut dyn FnMut(ValueId)),
) -> Division {
    let mut segments: Vec<Draft> = Vec::new();
    let mut clocks: Vec<Clock> = Vec::new();
    // As `clocks`, by the order of compute streams and the waits alone that the engine is told of: the bytes of segments may tell less than those of
    // units, and a copy may be made by way of another stream, so the order of copy streams does not tell.
    let mut told: Vec<Clock> = Vec::new();
    let mut segment_of = vec![usize::MAX; streams.len()];
    // What the last segment of each stream writes.
    let mut written: HashMap<StreamKey, HashSet<ValueId>> = HashMap::new();
    // What the last segment of each stream declares of values that several streams use.
    let mut declared: HashMap<StreamKey, HashMap<ValueId, (Access, Footprint)>> = HashMap::new();
    // For each stream its last segment, and whether units may still join it.
    let mut last: HashMap<StreamKey, (usize, bool)> = HashMap::new();
    for &unit in order {
        let stream = streams[unit];
        if stream.stream_type == StreamType::Critical && !options.has(Mutant::SectionJoined) {
            last.values_mut().for_each(|(_, joins)| *joins = false);
        }
        let own = last.get(&stream).copied();
        let open = |dependences: &[usize], clocks: &[Clock], tells: fn(StreamKey) -> bool| {
            let known = own.map(|(segment, _)| &clocks[segment]);
            let is_open = |segment: &usize| {
                let of = segments[*segment].stream;
                (of != stream || !tells(of))
                    && known.and_then(|known| known.get(&of)).is_none_or(|passed| passed < segment)
            };
            let mut after: Vec<usize> =
                dependences.iter().map(|&earlier| segment_of[earlier]).filter(is_open).collect();
            after.sort_unstable();
            after.dedup();
            after
        };
        let after = open(&dependences.all[unit], &clocks, |_| true);
        let waits = open(&dependences.explicit[unit], &told, is_compute);
        for &segment in after.iter().chain(&waits) {
            if let Some((last_segment, joins)) = last.get_mut(&segments[segment].stream)
                && *last_segment == segment
            {
                *joins = false;
            }
        }
        let alone = alone(unit) || stream.stream_type != StreamType::Compute;
        let written = written.entry(stream).or_default();
        let mut further = 0;
        writes(unit, &mut |value| further += usize::from(!written.contains(&value)));
        // Its arenas, and on a device the flag of its blocks.
        let reserved = arenas(stream).max(1) + usize::from(!stream.device.kind.is_run_by_host());
        let joins = (after.is_empty() && waits.is_empty()) || options.has(Mutant::JoinedTooFar);
        let fits = written.len() + further + reserved <= MAX_WRITES;
        let known = declared.entry(stream).or_default();
        let is_exact = |it: &Declared| {
            let one = known.get(&it.value);
            one.is_none_or(|(access, bytes)| join_exactly((*access, bytes), (it.access, &it.bytes)))
        };
        let exact = uses[unit].iter().all(is_exact);
        match own {
            Some((segment, true)) if joins && fits && exact && !alone => {
                segments[segment].units.push(unit);
                segment_of[unit] = segment;
            }
            _ => {
                written.clear();
                known.clear();
                let segment = segments.len();
                let begin = |clocks: &[Clock]| own.map(|(segment, _)| clocks[segment].clone()).unwrap_or_default();
                let (mut clock, mut told_clock) = (begin(&clocks), begin(&told));
                let stream_of = |segment: usize| segments[segment].stream;
                let after = latest(&after, stream_of, &clocks, &mut clock, |_| true);
                let waits = latest(&waits, stream_of, &told, &mut told_clock, is_compute);
                raise(&mut clock, stream, segment);
                if is_compute(stream) {
                    raise(&mut told_clock, stream, segment);
                }
                clocks.push(clock);
                told.push(told_clock);
                segments.push(Draft { stream, units: vec![unit], after, waits, branches: Vec::new() });
                segment_of[unit] = segment;
                last.insert(stream, (segment, !alone));
            }
        }
        writes(unit, &mut |value| _ = written.insert(value));
        for Declared { value, access, bytes } in &uses[unit] {
            let known = known.entry(*value).or_insert_with(|| (*access, bytes.clone()));
            *known = (extents::both(known.0, *access), extents::joined(&known.1, bytes));
        }
    }
    Division { segments, clocks }
}

/// Finds what each segment waits for, from what its units come after.
pub(super) fn find_waits(segments: &mut [Draft], dependences: &Dependences) {
    let mut segment_of = vec![usize::MAX; dependences.all.len()];
    for (number, segment) in segments.iter().enumerate() {
        segment.units.iter().for_each(|&unit| segment_of[unit] = number);
    }
    let streams: Vec<StreamKey> = segments.iter().map(|segment| segment.stream).collect();
    let stream_of = |segment: usize| streams[segment];
    let (mut clocks, mut told): (Vec<Clock>, Vec<Clock>) = (Vec::new(), Vec::new());
    let mut last: HashMap<StreamKey, usize> = HashMap::new();
    for (number, segment) in segments.iter_mut().enumerate() {
        let needed = |of: &Lists<usize>, is_told: bool| {
            let earlier = segment.units.iter().flat_map(|&unit| &of[unit]).map(|&earlier| segment_of[earlier]);
            let of_others = earlier.filter(|&earlier| {
                let of = stream_of(earlier);
                earlier != number && (of != segment.stream || is_told && !is_compute(of))
            });
            let mut needed: Vec<usize> = of_others.collect();
            needed.sort_unstable();
            needed.dedup();
            needed
        };
        let (after, waits) = (needed(&dependences.all, false), needed(&dependences.explicit, true));
        let own = last.insert(segment.stream, number);
        let begin = |clocks: &[Clock]| own.map(|own| clocks[own].clone()).unwrap_or_default();
        let (mut clock, mut told_clock) = (begin(&clocks), begin(&told));
        segment.after = latest(&after, stream_of, &clocks, &mut clock, |_| true);
        segment.waits = latest(&waits, stream_of, &told, &mut told_clock, is_compute);
        raise(&mut clock, segment.stream, number);
        if is_compute(segment.stream) {
            raise(&mut told_clock, segment.stream, number);
        }
        clocks.push(clock);
        told.push(told_clock);
    }
}

fn is_compute(stream: StreamKey) -> bool {
    stream.stream_type == StreamType::Compute
}

pub(super) fn raise(clock: &mut Clock, stream: StreamKey, passed: usize) {
    let known = clock.entry(stream).or_insert(passed);
    *known = passed.max(*known);
}

/// The steps of segments, in the order in which they run.
#[derive(Debug)]
pub(super) struct Order {
    /// Their positions among the kept steps.
    pub(super) positions: Vec<usize>,
    /// For each segment its range in that order.
    pub(super) ranges: Vec<Range<usize>>,
    /// For each segment its branches, with ranges of that order, if it runs on several lanes.
    pub(super) branches: Vec<Vec<SegmentBranch>>,
}

impl Order {
    /// The steps that one lane runs in their order: those of each branch, or of the whole segment.
    pub(super) fn on_one_lane(&self, segment: usize) -> impl Iterator<Item = Range<usize>> {
        let branches = &self.branches[segment];
        let whole = branches.is_empty().then(|| self.ranges[segment].clone());
        whole.into_iter().chain(branches.iter().map(|branch| branch.steps.clone()))
    }
}

/// The order of the steps of segments over these units.
pub(super) fn order(segments: &[Draft], units: &[Range<usize>]) -> Order {
    let mut order = Order { positions: Vec::new(), ranges: Vec::new(), branches: Vec::new() };
    for segment in segments {
        let begin = order.positions.len();
        order.positions.extend(segment.units.iter().flat_map(|&unit| units[unit].clone()));
        order.ranges.push(begin..order.positions.len());
        let mut next = begin;
        let branch = |DraftBranch { units: of, lane, after }: &DraftBranch| {
            let steps: usize = segment.units[of.clone()].iter().map(|&unit| units[unit].len()).sum();
            let start = next;
            next += steps;
            SegmentBranch { steps: start..next, lane: *lane, after: after.clone() }
        };
        order.branches.push(segment.branches.iter().map(branch).collect());
    }
    order
}

//! Pass: spreads the compute steps of each device over several lanes, by list scheduling on the critical path.
//!
//! No unit moves over the begin or the end of a critical section. Between two of these is a *phase*,
//! which begins by estimate when all units of the phase before it are over.
//!
//! A unit's *rank* is the estimated time from its beginning to the end of the program along the longest chain of units that depend on it. Units
//! are taken by descending rank, which is an order in which they can run, and each goes to the lane on which it would begin first. A unit that
//! depends on one of another stream begins later by [`CompileOptions::hand_over_ns`].
//!
//! A second schedule divides units by their *levels*. The level of a unit is the length of the longest chain of units before it, in its phase.
//! Of the units of one level, which could run side by side, the first ones in the order of the program go to the first lane, and so on.
//! Neighbours often need the same values, so fewer units wait for another lane. The pass takes the schedule that ends earlier; if both end at the
//! same time, the one in which fewer units wait, then the one with fewer lanes, then the first.
//!
//! A third schedule leaves everything on one lane, in the order of the program. It is the only one where the others promise to save less than a tenth of the time.
//! How many segments a schedule makes is not known here: the caller takes the schedule whose time is the shortest with its segments.
//!
//! The times are those of [`CompileOptions::costs`], and rough guesses from the sizes of tensors for all other steps; nothing is measured here, so the
//! plan is the same on every machine.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_ep::{ElementWork, OpClass};
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::lists::Lists;
use crate::ir::program::{Program, Step, Work};
use crate::plan::costs::{Costs, size};
use crate::plan::options::CompileOptions;

/// What a step costs beside its elements, in picoseconds.
const STEP: u64 = 100_000;

/// One way to spread the units.
pub(super) struct Spread {
    /// The units in an order in which they can run.
    pub(super) order: Vec<usize>,
    /// The stream of each unit.
    pub(super) streams: Vec<StreamKey>,
    /// When the last unit ends, in picoseconds.
    pub(super) over: u64,
}

/// The ways to spread the units over [`CompileOptions::lanes`], the one that ends first by estimate at the front; the last one has a single lane. `streams` has the
/// stream of each unit, on the lane that the recording has chosen, or on lane 0: only units of lane 0 are spread.
pub(super) fn spreads(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    dependences: &Lists<usize>,
    streams: &[StreamKey],
    options: &CompileOptions,
) -> Vec<Spread> {
    let in_order: Vec<usize> = (0..units.len()).collect();
    if options.lanes <= 1 {
        return vec![Spread { order: in_order, streams: streams.to_vec(), over: 0 }];
    }
    let hand_over = hand_over(options);
    let costs: Vec<u64> = units
        .iter()
        .map(|positions| {
            kept[positions.clone()]
                .iter()
                .map(|&number| cost(program, &program.steps[number], &options.costs))
                .fold(0, u64::saturating_add)
        })
        .collect();
    let mut ranks = costs.clone();
    for unit in (0..units.len()).rev() {
        for &earlier in &dependences[unit] {
            ranks[earlier] = ranks[earlier].max(costs[earlier].saturating_add(ranks[unit]));
        }
    }
    let mut by_rank = in_order.clone();
    // How many sections have begun or ended before each unit; the begin and the end stand alone.
    let mut passed = 0;
    let phase = |stream: &StreamKey| {
        let is_mark = usize::from(stream.stream_type == StreamType::Critical);
        passed += 2 * is_mark;
        passed - is_mark
    };
    let phases: Vec<usize> = streams.iter().map(phase).collect();
    by_rank.sort_by_key(|&unit| (phases[unit], std::cmp::Reverse(ranks[unit]), unit));
    let graph = Graph { costs: &costs, dependences, streams, phases: &phases, hand_over };
    let alone = graph.schedule(&in_order, |_, _| 0..1).over;
    // The lanes that the device uses so far, and one more: further ones are as free as that one.
    let begins_first = graph.schedule(&by_rank, |_, used| 0..options.lanes.min(used.saturating_add(1)));
    let lanes = graph.lanes_by_level(options.lanes);
    let by_level = graph.schedule(&by_rank, |unit, _| lanes[unit]..lanes[unit] + 1);
    let mut schedules = vec![begins_first, by_level];
    schedules.sort_by_key(Schedule::sort_key);
    schedules.retain(|schedule| schedule.over <= alone - alone / 10);
    let on_lanes = schedules.into_iter().map(|Schedule { streams, over, .. }| (by_rank.clone(), streams, over));
    let all = on_lanes.chain([(in_order.clone(), streams.to_vec(), alone)]);
    all.map(|(order, streams, over)| Spread { order, streams, over }).collect()
}

/// How long it takes until one lane sees that another has passed a point, in picoseconds. A segment takes as long to begin.
pub(super) fn hand_over(options: &CompileOptions) -> u64 {
    options.hand_over_ns.saturating_mul(1_000)
}

/// The units of a program, as a schedule needs to know them.
struct Graph<'g> {
    /// How long each unit takes, in picoseconds.
    costs: &'g [u64],
    dependences: &'g Lists<usize>,
    /// The stream of each unit, on the lane that the recording has chosen, or on lane 0.
    streams: &'g [StreamKey],
    phases: &'g [usize],
    /// How long it takes until one lane sees that another has passed a point, in picoseconds.
    hand_over: u64,
}

/// A stream for each unit.
struct Schedule {
    streams: Vec<StreamKey>,
    /// When the last unit ends, in picoseconds.
    over: u64,
    /// How many units wait for a unit of another stream.
    waits: usize,
    /// The largest number of lanes that one device uses.
    lanes: u32,
}

impl Schedule {
    /// Smaller is better.
    fn sort_key(&self) -> (u64, usize, u32) {
        (self.over, self.waits, self.lanes)
    }
}

impl Graph<'_> {
    /// For each unit a lane: the units of a stream that have one level in one phase are divided in their order.
    fn lanes_by_level(&self, lanes: u32) -> Vec<u32> {
        let Graph { dependences, streams, phases, .. } = *self;
        let mut levels = vec![0; streams.len()];
        // For each stream and phase, for each level: how many units it has, and how many of them have a lane.
        let mut counts: HashMap<(StreamKey, usize), Vec<(usize, usize)>> = HashMap::new();
        for unit in 0..streams.len() {
            let of_phase = dependences[unit].iter().filter(|&&earlier| phases[earlier] == phases[unit]);
            let level = of_phase.map(|&earlier| levels[earlier] + 1).max().unwrap_or(0);
            levels[unit] = level;
            let counts = counts.entry((streams[unit], phases[unit])).or_default();
            if counts.len() <= level {
                counts.resize(level + 1, (0, 0));
            }
            counts[level].0 += 1;
        }
        let mut lane = |unit: usize| {
            let of_level = counts.entry((streams[unit], phases[unit])).or_default();
            let (count, before) = &mut of_level[levels[unit]];
            let lane = *before * (*count).min(lanes as usize) / *count;
            *before += 1;
            lane as u32
        };
        (0..streams.len()).map(&mut lane).collect()
    }

    /// Takes the units in `order`. Each unit of a compute stream goes to the lane on which it begins first, out of those that `lanes` gives for the
    /// unit and for the number of lanes that are in use.
    fn schedule(&self, order: &[usize], lanes: impl Fn(usize, u32) -> Range<u32>) -> Schedule {
        let Graph { costs, dependences, streams, phases, hand_over } = *self;
        let mut chosen = streams.to_vec();
        let mut ends = vec![0; streams.len()];
        let mut free: HashMap<StreamKey, u64> = HashMap::new();
        let mut used_lanes: HashMap<StreamKey, u32> = HashMap::new();
        let (mut over, mut waits) = (0, 0);
        // The phase that units are taken from, and when the phase before it was over.
        let mut phase = (0, 0);
        for &unit in order {
            if phases[unit] != phase.0 {
                phase = (phases[unit], over);
            }
            let used = used_lanes.entry(streams[unit]).or_insert(0u32);
            let candidates = if streams[unit].stream_type == StreamType::Compute { lanes(unit, *used) } else { 0..1 };
            let begin_on = |stream: StreamKey| {
                let told = |&earlier: &usize| {
                    let wait = if chosen[earlier] == stream { 0 } else { hand_over };
                    u64::saturating_add(ends[earlier], wait)
                };
                let ready = dependences[unit].iter().map(told).max().unwrap_or(0);
                ready.max(free.get(&stream).copied().unwrap_or(0)).max(phase.1)
            };
            let on = |lane| StreamKey { lane, ..streams[unit] };
            let begins = candidates.map(|lane| (begin_on(on(lane)), lane));
            let (begin, lane) = match streams[unit].lane {
                0 => begins.min().unwrap_or_default(),
                // The recording has chosen it.
                lane => (begin_on(on(lane)), lane),
            };
            ends[unit] = begin.saturating_add(costs[unit]);
            chosen[unit] = on(lane);
            over = over.max(ends[unit]);
            waits += usize::from(dependences[unit].iter().any(|&earlier| chosen[earlier] != chosen[unit]));
            *used = (*used).max(lane.saturating_add(1));
            free.insert(chosen[unit], ends[unit]);
        }
        Schedule { streams: chosen, over, waits, lanes: used_lanes.into_values().max().unwrap_or(0) }
    }
}

/// Whether an op of this class adds up products, which [`size`] counts.
fn has_products(class: OpClass) -> bool {
    matches!(class, OpClass::MatMul | OpClass::Convolution | OpClass::ConvolutionGradient)
}

/// About how long a step takes, in picoseconds: as measured, or else by its size.
pub(super) fn cost(program: &Program, step: &Step, costs: &Costs) -> u64 {
    if let Some(nanoseconds) = costs.nanoseconds_of(&program.name, step) {
        return nanoseconds.saturating_mul(1_000);
    }
    let size = size(step);
    let work = match &step.work {
        Work::Call(op, _) if has_products(op.class()) => size.saturating_mul(40),
        Work::Call(op, _) => {
            let each = match op.element_work() {
                _ if !op.is_elementwise() && !op.is_over_tensors() => 1_000,
                ElementWork::Light => 250,
                ElementWork::Long => 1_000,
                ElementWork::Call => 4_000,
            };
            size.saturating_mul(each)
        }
        Work::Copy => {
            size.saturating_mul(program.value(step.operands[0].value).dtype.size() as u64).saturating_mul(100)
        }
        Work::Fill(_) => size.saturating_mul(100),
        Work::Function(_)
        | Work::Touch(_)
        | Work::If
        | Work::Else
        | Work::While
        | Work::End
        | Work::SectionBegin(_)
        | Work::SectionEnd(_) => 0,
    };
    work.saturating_add(STEP)
}

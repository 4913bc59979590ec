//! Pass: spreads the compute steps of each device over several lanes, by list scheduling on the critical path.
//!
//! No unit moves over the begin or the end of a critical section.
//!
//! A unit's *rank* is the estimated time from its beginning to the end of the program along the longest chain of units that depend on it. Units
//! are taken by descending rank, which is an order in which they can run, and each goes to the lane on which it would end first. A unit that
//! depends on one of another stream begins later by [`CompileOptions::hand_over_ns`].
//!
//! That schedule is compared with another one: of units that could run at the same time, because the longest chain before each has equally many units, the first ones in the order of the
//! program go to the first lane, and so on. Neighbours often need the same values, so fewer lanes wait for each other. It is taken if it ends
//! earlier, or at the same time with fewer dependences between lanes.
//!
//! The times are those of [`CompileOptions::costs`], and rough guesses from the sizes of tensors for all other steps; nothing is measured here, so the
//! plan is the same on every machine. Where they promise to save less
//! than a tenth of the time, everything stays on one lane, in the order of the program.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_ep::{ElementWork, OpClass};
use streamvm_stream::{StreamKey, StreamType};

use crate::ir::program::{Program, Step, Work};
use crate::plan::costs::{Costs, size};
use crate::plan::options::CompileOptions;

/// What a step costs beside its elements, in picoseconds.
const STEP: u64 = 100_000;

/// The order of the units. Sets the lane of each, out of [`CompileOptions::lanes`].
pub(super) fn spread(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    dependences: &[Vec<usize>],
    streams: &mut [StreamKey],
    options: &CompileOptions,
) -> Vec<usize> {
    let in_order: Vec<usize> = (0..units.len()).collect();
    if options.lanes <= 1 {
        return in_order;
    }
    let hand_over = options.hand_over_ns.saturating_mul(1_000);
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
    let alone = schedule(&in_order, &costs, dependences, (streams, hand_over), |_, _| 0..1).over;
    // The lanes that the device uses so far, and one more: further ones are as free as that one.
    let any = |_, used: u32| 0..options.lanes.min(used.saturating_add(1));
    let earliest = schedule(&by_rank, &costs, dependences, (streams, hand_over), any);
    let places = by_place(dependences, streams, options.lanes);
    let neighbours =
        schedule(&by_rank, &costs, dependences, (streams, hand_over), |unit, _| places[unit]..places[unit] + 1);
    let best = if neighbours.sort_key() < earliest.sort_key() { neighbours } else { earliest };
    if best.over > alone - alone / 10 {
        return in_order;
    }
    streams.copy_from_slice(&best.streams);
    by_rank
}

/// For each unit a lane: those of one level, which have chains of equal length before them, are divided in their order.
fn by_place(dependences: &[Vec<usize>], streams: &[StreamKey], lanes: u32) -> Vec<u32> {
    let mut levels = vec![0; streams.len()];
    // For each stream how many units each level has.
    let mut counts: HashMap<StreamKey, Vec<usize>> = HashMap::new();
    for unit in 0..streams.len() {
        let level = dependences[unit].iter().map(|&earlier| levels[earlier] + 1).max().unwrap_or(0);
        levels[unit] = level;
        let counts = counts.entry(streams[unit]).or_default();
        if counts.len() <= level {
            counts.resize(level + 1, 0);
        }
        counts[level] += 1;
    }
    let mut seen: HashMap<StreamKey, Vec<usize>> =
        counts.iter().map(|(&stream, counts)| (stream, vec![0; counts.len()])).collect();
    let place = |(&level, stream): (&usize, &StreamKey)| {
        let (count, seen) = (counts[stream][level], seen.get_mut(stream).map(|seen| &mut seen[level]));
        let before = seen.map_or(0, |seen| std::mem::replace(seen, *seen + 1));
        (before * count.min(lanes as usize) / count) as u32
    };
    levels.iter().zip(streams).map(place).collect()
}

/// A stream for each unit.
struct Schedule {
    streams: Vec<StreamKey>,
    /// When all units are over.
    over: u64,
    /// How many dependences are between units of different streams.
    hand_overs: usize,
}

impl Schedule {
    /// Smaller is better.
    fn sort_key(&self) -> (u64, usize) {
        (self.over, self.hand_overs)
    }
}

/// Takes the units in `order`. Each goes to the lane on which it begins first, out of those that `lanes` gives for the unit and the number of lanes that are in use.
fn schedule(
    order: &[usize],
    costs: &[u64],
    dependences: &[Vec<usize>],
    (streams, hand_over): (&[StreamKey], u64),
    lanes: impl Fn(usize, u32) -> Range<u32>,
) -> Schedule {
    let mut chosen = streams.to_vec();
    let mut hand_overs = 0;
    let mut ends = vec![0; streams.len()];
    let mut free: HashMap<StreamKey, u64> = HashMap::new();
    let mut used_lanes: HashMap<StreamKey, u32> = HashMap::new();
    for &unit in order {
        let used = used_lanes.entry(streams[unit]).or_insert(0u32);
        let candidates = if streams[unit].stream_type == StreamType::Compute { lanes(unit, *used) } else { 0..1 };
        let begin_on = |stream: StreamKey| {
            let told = |&earlier: &usize| {
                let wait = if chosen[earlier] == stream { 0 } else { hand_over };
                u64::saturating_add(ends[earlier], wait)
            };
            let ready = dependences[unit].iter().map(told).max().unwrap_or(0);
            ready.max(free.get(&stream).copied().unwrap_or(0))
        };
        let on = |lane| StreamKey { lane, ..streams[unit] };
        let begins = candidates.map(|lane| (begin_on(on(lane)), lane));
        let (begin, lane) = begins.min().unwrap_or_default();
        ends[unit] = begin.saturating_add(costs[unit]);
        chosen[unit] = on(lane);
        hand_overs += dependences[unit].iter().filter(|&&earlier| chosen[earlier] != chosen[unit]).count();
        *used = (*used).max(lane + 1);
        free.insert(chosen[unit], ends[unit]);
    }
    let over = ends.into_iter().max().unwrap_or(0);
    Schedule { streams: chosen, over, hand_overs }
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
                _ if !op.is_elementwise() => 1_000,
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
        | Work::If
        | Work::Else
        | Work::While
        | Work::End
        | Work::SectionBegin(_)
        | Work::SectionEnd(_) => 0,
    };
    work.saturating_add(STEP)
}

//! Pass: spreads the compute steps of each device over several lanes, by list scheduling on the critical path.
//!
//! No unit moves over the begin or the end of a critical section.
//!
//! A unit's *rank* is the estimated time from its beginning to the end of the program along the longest chain of units that depend on it. Units
//! are taken by descending rank, which is an order in which they can run, and each goes to the lane on which it would end first. A unit that
//! depends on one of another stream begins later by [`CompileOptions::hand_over_ns`].
//!
//! The times are those of [`CompileOptions::costs`], and rough guesses from the sizes of tensors for all other steps; nothing is measured here, so the
//! plan is the same on every machine. Where they promise to save less
//! than a tenth of the time, everything stays on one lane, in the order of the program.

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

/// The order of the units. Sets the lane of each, out of [`CompileOptions::lanes`].
pub(super) fn spread(
    program: &Program,
    kept: &[usize],
    units: &[Range<usize>],
    dependences: &Lists<usize>,
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
    let alone = finish(&in_order, &costs, dependences, streams, (1, hand_over)).1;
    let (spread, together) = finish(&by_rank, &costs, dependences, streams, (options.lanes, hand_over));
    if together > alone - alone / 10 {
        return in_order;
    }
    streams.copy_from_slice(&spread);
    by_rank
}

/// The stream of each unit, and when all of them are over.
fn finish(
    order: &[usize],
    costs: &[u64],
    dependences: &Lists<usize>,
    streams: &[StreamKey],
    (lanes, hand_over): (u32, u64),
) -> (Vec<StreamKey>, u64) {
    let mut chosen = streams.to_vec();
    let mut ends = vec![0; streams.len()];
    let mut free: HashMap<StreamKey, u64> = HashMap::new();
    let mut used_lanes: HashMap<StreamKey, u32> = HashMap::new();
    for &unit in order {
        // The lanes that the device uses so far, and one more: further ones are as free as that one.
        let used = used_lanes.entry(streams[unit]).or_insert(0u32);
        let most = if streams[unit].stream_type == StreamType::Compute { lanes } else { 1 };
        let candidates = most.min(used.saturating_add(1));
        let begin_on = |stream: StreamKey| {
            let told = |&earlier: &usize| {
                let wait = if chosen[earlier] == stream { 0 } else { hand_over };
                u64::saturating_add(ends[earlier], wait)
            };
            let ready = dependences[unit].iter().map(told).max().unwrap_or(0);
            ready.max(free.get(&stream).copied().unwrap_or(0))
        };
        let on = |lane| StreamKey { lane, ..streams[unit] };
        let begins = (0..candidates).map(|lane| (begin_on(on(lane)), lane));
        let (begin, lane) = begins.min().unwrap_or_default();
        ends[unit] = begin.saturating_add(costs[unit]);
        chosen[unit] = on(lane);
        *used = (*used).max(lane + 1);
        free.insert(chosen[unit], ends[unit]);
    }
    let over = ends.into_iter().max().unwrap_or(0);
    (chosen, over)
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

//! Pass: where the bytes of each value live.
//!
//! A value that steps of one stream alone use shares an arena with others of that stream: the stream runs them in order, so one value may lie
//! where another one was. These have memory of their own:
//!
//! * a value that several streams use, or that only a copy stream uses;
//! * one in page-locked memory;
//! * one that a function uses which is a segment by itself: it gets the value as a tensor. A function in a block is no
//!   segment by itself, so its operands may lie in an arena.
//!
//! A value that several lanes of one segment use, and no other segment, shares an arena with other such values of the segment ([`share`]). It lives as long
//! as the segment, because lanes have no order of their own.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_ep::{DeviceId, MemoryKind};
use streamvm_instructions::Place;
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::lists::Lists;
use crate::compile::users::Users;
use crate::compile::value_uses::ValueUse;
use crate::ir::program::{Program, Value, ValueId, ValueRole, Work};

/// An arena: the stream that uses its values, and the device whose memory it is. A block on a device has values on others, too.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ArenaOf {
    pub(super) stream: StreamKey,
    pub(super) device: DeviceId,
}

/// Where the bytes of a value live.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// In the caller's tensor for a feed or parameter, or in the tensor of a fetch.
    Outside,
    /// In memory of each run, which no other value shares.
    Own,
    /// In the arena of this number.
    Arena(usize),
}

/// The homes of the values, and the arenas. `kept` has the numbers of the steps, `units` their units, and `streams` the stream of
/// each unit; `uses` has what each step of the program uses. With `all_own`, no value shares memory with another; with `functions_join`,
/// functions outside of blocks are steps like others, as those in blocks always are.
pub(super) fn of(
    program: &Program,
    kept: &[usize],
    uses: &Lists<ValueUse>,
    units: &[Range<usize>],
    streams: &[StreamKey],
    (all_own, functions_join): (bool, bool),
) -> (Vec<Home>, Vec<ArenaOf>) {
    let mut fetched = vec![false; program.values.len()];
    program.fetches.iter().for_each(|fetch| fetched[fetch.value.0] = true);
    let outside = |index: usize| program.values[index].role != ValueRole::Computed || fetched[index];
    let mut homes: Vec<Option<Home>> =
        (0..program.values.len()).map(|index| outside(index).then_some(Home::Outside)).collect();
    let mut arenas: Vec<ArenaOf> = Vec::new();
    let mut numbers: HashMap<ArenaOf, usize> = HashMap::new();
    for (unit, stream) in units.iter().zip(streams) {
        // The unit of a function in a block has further steps, which begin and end the block.
        let as_tensor = unit.len() == 1
            && match program.steps[kept[unit.start]].work {
                Work::Function(_) => !functions_join,
                Work::Touch(_) => true,
                _ => false,
            };
        for &ValueUse { value, .. } in kept[unit.clone()].iter().flat_map(|&number| &uses[number]) {
            let home = &mut homes[value.0];
            *home = Some(match *home {
                None => match arena_of(program.value(value), *stream).filter(|_| !all_own && !as_tensor) {
                    Some(arena) => Home::Arena(*numbers.entry(arena).or_insert_with(|| {
                        arenas.push(arena);
                        arenas.len() - 1
                    })),
                    None => Home::Own,
                },
                Some(Home::Arena(known)) if as_tensor || arenas[known].stream != *stream => Home::Own,
                Some(known) => known,
            });
        }
    }
    (homes.into_iter().map(|home| home.unwrap_or(Home::Own)).collect(), arenas)
}

/// A segment, as far as homes depend on it.
pub(super) struct SegmentOf<'s> {
    pub(super) stream: StreamKey,
    pub(super) units: &'s [usize],
    /// Whether it runs on several lanes.
    pub(super) has_branches: bool,
}

/// Puts the values that only lanes of one segment give to each other into an arena of that segment. Returns them, each with its segment.
pub(super) fn share(
    program: &Program,
    kept: &[usize],
    uses: &Lists<ValueUse>,
    units: &[Range<usize>],
    segments: &[SegmentOf<'_>],
    homes: &mut [Home],
    arenas: &mut Vec<ArenaOf>,
) -> Vec<(ValueId, usize)> {
    if !segments.iter().any(|segment| segment.has_branches) {
        return Vec::new();
    }
    let mut users = Users::new(program.values.len());
    for (number, segment) in segments.iter().enumerate() {
        let steps = segment.units.iter().flat_map(|&unit| units[unit].clone()).map(|position| kept[position]);
        steps.flat_map(|step| &uses[step]).for_each(|it| users.add(it.value.0, number));
    }
    let mut shared = Vec::new();
    let mut arenas_of: HashMap<usize, usize> = HashMap::new();
    for (index, home) in homes.iter_mut().enumerate().filter(|(_, home)| **home == Home::Own) {
        let Some(number) = users.only(index) else { continue };
        let SegmentOf { stream, has_branches, .. } = segments[number];
        if !has_branches || !shares_an_arena(&program.values[index], stream) {
            continue;
        }
        let arena = *arenas_of.entry(number).or_insert_with(|| {
            arenas.push(ArenaOf { stream, device: stream.device });
            arenas.len() - 1
        });
        *home = Home::Arena(arena);
        shared.push((ValueId(index), number));
    }
    shared
}

/// For each arena the segment with branches that alone uses it.
pub(super) fn only_users(
    kept: &[usize],
    uses: &Lists<ValueUse>,
    segments: impl Iterator<Item = (bool, Range<usize>)> + Clone,
    homes: &[Home],
    arenas: usize,
) -> Vec<Option<usize>> {
    // For each segment, whether it has branches.
    let has_branches: Vec<bool> = segments.clone().map(|(has_branches, _)| has_branches).collect();
    if !has_branches.contains(&true) {
        return vec![None; arenas];
    }
    let mut users = Users::new(arenas);
    for (number, (_, positions)) in segments.enumerate() {
        for it in kept[positions].iter().flat_map(|&step| &uses[step]) {
            if let Home::Arena(arena) = homes[it.value.0] {
                users.add(arena, number);
            }
        }
    }
    (0..arenas).map(|arena| users.only(arena).filter(|&number| has_branches[number])).collect()
}

/// Whether a value may lie in an arena of the memory of the stream's device.
pub(super) fn shares_an_arena(value: &Value, stream: StreamKey) -> bool {
    arena_of(value, stream).is_some_and(|arena| arena.device == stream.device)
}

/// The arena for a value that a stream uses, if it may lie in one.
fn arena_of(value: &Value, stream: StreamKey) -> Option<ArenaOf> {
    let device = match value.place {
        Place::Host if stream.device.kind.is_run_by_host() => stream.device,
        Place::Host => return None,
        Place::Device(device) => device,
    };
    let shares = value.memory == MemoryKind::Device && stream.stream_type == StreamType::Compute;
    shares.then_some(ArenaOf { stream, device })
}

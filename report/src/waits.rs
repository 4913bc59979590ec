//! Waits that could go: without one of these, the instruction would still begin after what it waited for, because of its other waits and those before it on its stream.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use crate::recording::{Recording, Text};
use crate::report::{Place, place};

/// How many pairs of lines a report names: those with the most waits.
const MOST: usize = 20;

/// The most numbers in clocks, of four bytes each. Where a trace needs more, the report does not tell.
const NUMBERS: usize = 1 << 23;

/// The most numbers that are compared: each wait takes one for each stream.
const COMPARED: usize = 1 << 28;

/// Waits that could go, because others imply them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Waits {
    /// How many waits of instructions for others the trace has.
    pub waits: u64,
    /// How many of them could go.
    pub implied: u64,
    /// By lines, the most first: at most 20.
    pub groups: Vec<ImpliedWaits>,
}

/// The waits of one line for another one that could go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct ImpliedWaits {
    /// The instruction that waited.
    pub of: Place,
    /// The instruction that it waited for.
    pub source: Place,
    /// How often.
    pub times: u64,
}

/// A stream, a name and a line.
type Which = (u32, Text, Text);

/// For one stream: how many of its instructions come before the source that comes after the most, that source, and the same count for the second-best source.
#[derive(Copy, Clone, Default)]
struct Most {
    known: u32,
    source: u32,
    second: u32,
}

impl Most {
    fn add(&mut self, source: u32, known: u32) {
        if known > self.known {
            *self = Most { known, source, second: self.known };
        } else {
            self.second = self.second.max(known);
        }
    }

    /// The most without a source.
    fn without(self, source: u32) -> u32 {
        if self.source == source { self.second } else { self.known }
    }
}

/// Finds the waits that could go; `None` if the trace has too many waits on too many streams.
pub(crate) fn waits(recording: &Recording) -> Option<Waits> {
    let all = &recording.instructions;
    // The place of each instruction on its stream, from 1.
    let mut places = vec![0u32; all.len()];
    for stream in &recording.streams {
        for (place, instruction) in (1..).zip(&stream.instructions) {
            places[*instruction as usize] = place;
        }
    }
    let is_unordered = |place: u32| recording.streams[all[place as usize].stream as usize].is_unordered;
    // Instructions that others wait for: their clocks are kept, one after the other.
    let mut kept: Vec<u32> = recording.sources.iter().copied().filter(|source| !is_unordered(*source)).collect();
    kept.sort_unstable();
    kept.dedup();
    let streams = recording.streams.len();
    let compared = (recording.sources.len() + all.len()).saturating_mul(streams);
    if (kept.len() + streams).saturating_mul(streams) > NUMBERS || compared > COMPARED {
        return None;
    }
    let mut kept_clocks = vec![0u32; kept.len() * streams];
    let place_of = |source: u32| Some(kept.binary_search(&source).ok()? * streams);
    // Of each stream: how many instructions of each other one come before its next one.
    let mut clocks = vec![vec![0u32; streams]; streams];
    let mut groups: HashMap<(Which, Which), u64> = HashMap::new();
    let mut found = Waits { waits: 0, implied: 0, groups: Vec::new() };
    for (at, instruction) in (0u32..).zip(all) {
        let (stream, sources) = (instruction.stream as usize, recording.sources(instruction));
        let is_ordered = !recording.streams[stream].is_unordered;
        let mut before = if is_ordered { std::mem::take(&mut clocks[stream]) } else { vec![0; streams] };
        found.waits += sources.len() as u64;
        let mut most = vec![Most::default(); if sources.len() > 1 { streams } else { 0 }];
        for source in sources.iter().filter(|_| sources.len() > 1) {
            let Some(place) = place_of(*source) else { continue };
            let clock = &kept_clocks[place..place + streams];
            most.iter_mut().zip(clock).for_each(|(most, known)| most.add(*source, *known));
        }
        for source in sources.iter().filter(|source| !is_unordered(**source)) {
            let it = &all[*source as usize];
            let by_others = most.get(it.stream as usize).map_or(0, |most| most.without(*source));
            if before[it.stream as usize].max(by_others) >= places[*source as usize] {
                let waiting = (instruction.stream, instruction.name, instruction.line);
                *groups.entry((waiting, (it.stream, it.name, it.line))).or_default() += 1;
                found.implied += 1;
            }
        }
        for place in sources.iter().filter_map(|source| place_of(*source)) {
            let clock = &kept_clocks[place..place + streams];
            before.iter_mut().zip(clock).for_each(|(known, new)| *known = (*known).max(*new));
        }
        if is_ordered {
            before[stream] = places[at as usize];
            if let Some(place) = place_of(at) {
                kept_clocks[place..place + streams].copy_from_slice(&before);
            }
            clocks[stream] = before;
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_unstable_by_key(|(pair, times)| (Reverse(*times), *pair));
    let group =
        |((of, source), times)| ImpliedWaits { of: place(recording, of), source: place(recording, source), times };
    found.groups.extend(groups.into_iter().take(MOST).map(group));
    Some(found)
}

//! What each pass did, for people: `streamvm compile --show passes`.
//!
//! A report calls a value by its feed, parameter or fetch; any other is called `%3` after the step of the recording that writes it first.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashMap;
use streamvm_stream::StreamKey;

use crate::ir::program::{Program, ValueId};

/// What one pass did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassReport {
    /// The name of the pass.
    pub pass: &'static str,
    /// One sentence, without an end of line.
    pub summary: String,
    /// Further lines.
    pub details: Vec<String>,
}

/// The listener that gets the reports, if there is one. Without it no report is made.
#[derive(Default)]
pub(crate) struct Trace<'r>(Option<&'r mut dyn FnMut(PassReport)>);

impl<'r> Trace<'r> {
    pub(crate) fn new(report: &'r mut dyn FnMut(PassReport)) -> Trace<'r> {
        Trace(Some(report))
    }

    pub(crate) fn note(&mut self, report: impl FnOnce() -> PassReport) {
        if let Some(listener) = &mut self.0 {
            listener(report());
        }
    }
}

pub(crate) fn check(program: &Program) -> PassReport {
    let Program { values, steps, feeds, parameters, fetches, .. } = program;
    let counts = [
        counted(values.len(), "value"),
        counted(steps.len(), "step"),
        counted(feeds.len(), "feed"),
        counted(parameters.len(), "parameter"),
        counted(fetches.len(), "fetch"),
    ];
    PassReport { pass: "check", summary: counts.join(", "), details: lines(&program.to_string()) }
}

/// `recorded` is the number of steps before the pass.
pub(crate) fn fetched_copies(program: &Program, recorded: usize) -> PassReport {
    let copies = program.steps.iter().enumerate().skip(recorded);
    let names = Names::of(program);
    let details: Vec<String> = copies
        .filter_map(|(number, step)| {
            let (source, copy) = (step.inputs().next()?, step.output()?);
            Some(format!("%{number} copies {} to the fetch {}", names.get(source.value), names.get(copy.value)))
        })
        .collect();
    let summary = match details.len() {
        0 => "no fetch is a feed or a parameter".to_owned(),
        added => format!("adds {}", counted(added, "copy")),
    };
    PassReport { pass: "fetched_copies", summary, details }
}

pub(crate) fn unfetched(program: &Program, kept: &[usize]) -> PassReport {
    let all = program.steps.len();
    let mut next = kept.iter().peekable();
    let mut details = Vec::new();
    for (number, step) in program.steps.iter().enumerate() {
        if next.next_if_eq(&&number).is_none() {
            details.push(format!("%{number} {}", step.work.name()));
        }
    }
    let summary = match details.len() {
        0 => format!("keeps all of {}", counted(all, "step")),
        removed => format!("removes {removed} of {}", counted(all, "step")),
    };
    PassReport { pass: "unfetched", summary, details }
}

pub(crate) fn lifetimes(program: &Program, lifetimes: &[Range<usize>]) -> PassReport {
    let names = Names::of(program);
    let used = lifetimes.iter().enumerate().filter(|(_, life)| !life.is_empty());
    let details: Vec<String> =
        used.map(|(index, life)| format!("{} {}..{}", names.get(ValueId(index)), life.start, life.end)).collect();
    let summary =
        format!("{} are used, each from its first step up to the one behind its last", counted(details.len(), "value"));
    PassReport { pass: "lifetimes", summary, details }
}

/// `shares` has for each value the one whose memory it takes over, or itself.
pub(crate) fn in_place(program: &Program, shares: &[ValueId]) -> PassReport {
    let names = Names::of(program);
    let taken = shares.iter().enumerate().filter(|(index, first)| first.0 != *index);
    let details: Vec<String> = taken
        .map(|(index, first)| format!("{} takes over the memory of {}", names.get(ValueId(index)), names.get(*first)))
        .collect();
    let summary = match details.len() {
        0 => "no value takes over memory".to_owned(),
        1 => "1 value takes over memory".to_owned(),
        several => format!("{several} values take over memory"),
    };
    PassReport { pass: "in_place", summary, details }
}

/// `groups` are the numbers of the steps that run together; `scratch` has for each value its piece of scratch memory, if it has one.
pub(crate) fn fuse<'k>(
    program: &Program,
    groups: impl Iterator<Item = &'k [usize]>,
    scratch: &[Option<usize>],
) -> PassReport {
    let names = Names::of(program);
    let mut details: Vec<String> = groups
        .map(|steps| {
            let steps: Vec<String> = steps.iter().map(|step| format!("%{step}")).collect();
            format!("{} run together", steps.join(" "))
        })
        .collect();
    let summary = match details.len() {
        0 => "no steps run together".to_owned(),
        groups => format!("{} run together", counted(groups, "group")),
    };
    let held = scratch.iter().enumerate().filter_map(|(index, piece)| Some((ValueId(index), (*piece)?)));
    details.extend(held.map(|(value, piece)| format!("{} in scratch{piece}", names.get(value))));
    PassReport { pass: "fuse", summary, details }
}

/// `arenas` has for each arena the offsets of its values, its size, and the lower bound of it.
pub(crate) fn arena<'a>(
    program: &Program,
    arenas: impl Iterator<Item = (&'a [(ValueId, usize)], usize, usize)>,
) -> PassReport {
    let names = Names::of(program);
    let (mut details, mut values, mut bytes, mut bound, mut count) = (Vec::new(), 0, 0, 0, 0);
    for (number, (offsets, size, lower_bound)) in arenas.filter(|(offsets, ..)| !offsets.is_empty()).enumerate() {
        let of = if number == 0 { String::new() } else { format!(" of arena {number}") };
        details.extend(offsets.iter().map(|(value, offset)| format!("{} at {offset}{of}", names.get(*value))));
        (values, bytes, bound, count) = (values + offsets.len(), bytes + size, bound + lower_bound, number + 1);
    }
    let values = counted(values, "value");
    let several = if count > 1 { format!("{count} arenas of ") } else { String::new() };
    let summary = format!("{values} in {several}{bytes} bytes, lower bound {bound} bytes");
    PassReport { pass: "arena", summary, details }
}

/// `streams` has the stream of each unit.
pub(crate) fn streams(streams: &[StreamKey]) -> PassReport {
    let mut units: BTreeMap<StreamKey, usize> = BTreeMap::new();
    streams.iter().for_each(|stream| *units.entry(*stream).or_default() += 1);
    let summary = format!("{} on {}", counted(streams.len(), "unit"), counted(units.len(), "stream"));
    let details = units.into_iter().map(|(stream, units)| format!("{stream}: {}", counted(units, "unit"))).collect();
    PassReport { pass: "streams", summary, details }
}

/// `firsts` has the first step of each unit. `dependences` has for each unit those that it comes after, and those of them that no bytes tell.
pub(crate) fn dependences<'d>(
    firsts: &[usize],
    dependences: impl Iterator<Item = (&'d [usize], &'d [usize])> + Clone,
) -> PassReport {
    let all: usize = dependences.clone().map(|(all, _)| all.len()).sum();
    let explicit: usize = dependences.clone().map(|(_, explicit)| explicit.len()).sum();
    let summary = match all {
        0 => "none between units".to_owned(),
        found => format!("{}, {explicit} of them explicit", counted(found, "dependence")),
    };
    let detail = |(unit, (after, explicit)): (usize, (&[usize], &[usize]))| {
        let number = |earlier: &usize| {
            let mark = if explicit.contains(earlier) { " (explicit)" } else { "" };
            format!("%{}{mark}", firsts[*earlier])
        };
        format!("%{} after {}", firsts[unit], after.iter().map(number).collect::<Vec<_>>().join(", "))
    };
    let details = dependences.enumerate().filter(|(_, (after, _))| !after.is_empty()).map(detail).collect();
    PassReport { pass: "dependences", summary, details }
}

/// One stream runs all units in their order.
pub(crate) fn no_dependences() -> PassReport {
    let summary = "none are needed: one stream runs all units in their order".to_owned();
    PassReport { pass: "dependences", summary, details: Vec::new() }
}

/// `firsts` has the first step of each unit, and `streams` its stream.
pub(crate) fn lanes(firsts: &[usize], streams: &[StreamKey], most: u32) -> PassReport {
    let moved = firsts.iter().zip(streams).filter(|(_, stream)| stream.lane > 0);
    let details: Vec<String> = moved.map(|(first, stream)| format!("%{first} on lane {}", stream.lane)).collect();
    let summary = match most {
        0 | 1 => "all units on one lane".to_owned(),
        _ => format!("{} of {} on other lanes than the first", details.len(), counted(firsts.len(), "unit")),
    };
    PassReport { pass: "lanes", summary, details }
}

/// `own` are the values with memory that no other value shares; `in_arenas` has the others that are neither fed, parameters nor fetched, with the
/// number of their arena.
pub(crate) fn homes(
    program: &Program,
    own: impl Iterator<Item = ValueId>,
    in_arenas: impl Iterator<Item = (ValueId, usize)>,
) -> PassReport {
    let names = Names::of(program);
    let own: Vec<String> = own.map(|value| format!("{} has memory of its own", names.get(value))).collect();
    let in_arenas: Vec<String> =
        in_arenas.map(|(value, arena)| format!("{} in arena {arena}", names.get(value))).collect();
    let summary = format!("{} in arenas, {} in memory of their own", counted(in_arenas.len(), "value"), own.len());
    PassReport { pass: "homes", summary, details: [in_arenas, own].concat() }
}

/// `segments` has for each segment its stream, the number of its steps, and the segments that it waits for.
pub(crate) fn segments<'p>(segments: impl Iterator<Item = (StreamKey, usize, &'p [usize])>) -> PassReport {
    let details: Vec<String> = segments.enumerate().map(|(number, it)| segment(number, it)).collect();
    PassReport { pass: "segments", summary: counted(details.len(), "segment"), details }
}

/// `segments` has for each segment the same, and the lanes of its branches, if it has some.
pub(crate) fn merge<'p>(segments: impl Iterator<Item = ((StreamKey, usize, &'p [usize]), Vec<usize>)>) -> PassReport {
    let (mut details, mut count) = (Vec::new(), 0);
    for (number, (it, mut lanes)) in segments.enumerate() {
        count = number + 1;
        if !lanes.is_empty() {
            let branches = counted(lanes.len(), "branch");
            lanes.sort_unstable();
            lanes.dedup();
            details.push(format!("{}, in {branches} on {}", segment(number, it), counted(lanes.len(), "lane")));
        }
    }
    let summary = match details.len() {
        0 => "no segments are merged".to_owned(),
        merged => format!("{merged} of {} on several lanes", counted(count, "segment")),
    };
    PassReport { pass: "merge", summary, details }
}

fn segment(number: usize, (stream, steps, after): (StreamKey, usize, &[usize])) -> String {
    let after: Vec<String> = after.iter().map(usize::to_string).collect();
    let waits = if after.is_empty() { String::new() } else { format!(", waits for segment {}", after.join(", ")) };
    format!("segment {number} on {stream}: {}{waits}", counted(steps, "step"))
}

/// `plan` is the compiled program as text.
pub(crate) fn emit(buffers: usize, steps: usize, plan: &str) -> PassReport {
    let summary = format!("{}, {}", counted(buffers, "buffer"), counted(steps, "step"));
    PassReport { pass: "emit", summary, details: lines(plan) }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn counted(number: usize, what: &str) -> String {
    match (number, what) {
        (1, _) => format!("1 {what}"),
        (_, "fetch") => format!("{number} fetches"),
        (_, "branch") => format!("{number} branches"),
        (_, "copy") => format!("{number} copies"),
        _ => format!("{number} {what}s"),
    }
}

/// The names of values.
struct Names(HashMap<ValueId, String>);

impl Names {
    fn of(program: &Program) -> Names {
        let mut names = HashMap::new();
        for port in program.feeds.iter().chain(&program.parameters).chain(&program.fetches) {
            names.entry(port.value).or_insert_with(|| port.name.clone());
        }
        for (number, step) in program.steps.iter().enumerate() {
            for output in step.outputs() {
                names.entry(output.value).or_insert_with(|| format!("%{number}"));
            }
        }
        Names(names)
    }

    fn get(&self, value: ValueId) -> &str {
        self.0.get(&value).map_or("a value that no step writes", String::as_str)
    }
}

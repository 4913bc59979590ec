//! Pass: segments of several lanes of one device become one segment with branches.
//!
//! A GPU may run the branches of a segment on lanes of its own, and launch all of them by one call, as a CUDA graph. On a CPU threads run them side by
//! side. Between segments, a run pays for a submission each time, and for an event and a wait, or for waking a thread.
//!
//! A segment with branches begins when everything that any of them needs has passed, and has passed when all of them have. Segments are merged only where
//! no step of the program waits longer for another step of the program:
//!
//! 1. *Entry*: each segment outside that a member comes after comes before all members.
//! 2. *Exit*: each segment outside that comes after a member comes after all members.
//!
//! Both count the order of streams, and are those of the segments as they were divided. They also keep the merged segments free of cycles: whatever lies
//! between two members would have to come before all of them and after all of them.
//!
//! What the caller sees does not count: a fetch is there when the merged segment has passed, the segment begins when the feeds of all lanes are there and the run
//! before it has passed on all lanes, and it is skipped if a feed of any lane has failed. All of that is so with one lane.
//!
//! A segment stays alone if a graph cannot have all of its steps: blocks, kernels that may fail, random numbers; on a CPU, if it has blocks, or a kernel that is
//! so large that it uses all cores by itself: the thread of a branch would run it alone. Nothing is merged over the begin or the end of a critical section, and
//! no more than an instruction may write.
//!
//! The pass goes through the segments in order and adds each to the last set of its device while these rules hold, as far as they can be judged then. At the
//! end, a set that breaks the second rule, or that would write too much, is given up: its segments stay as they were.

use hashbrown::{HashMap, HashSet};
use streamvm_ep::{Access, DeviceId, Footprint, Lanes, MAX_WRITES};
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::extents::{self, join_exactly};
use crate::compile::homes::{Home, shares_an_arena};
use crate::compile::lanes::cost;
use crate::compile::lists::Lists;
use crate::compile::order::Dependences;
use crate::compile::segments::{Clock, Division, Draft, DraftBranch, find_waits, latest, raise};
use crate::compile::units::Declared;
use crate::compile::value_uses::{ValueUse, written};
use crate::ir::program::{Program, Step, ValueId, Work};
use crate::plan::costs::{Costs, size};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// The arena of what lanes give to each other.
const SHARED: usize = 1;

/// Picoseconds. A kernel on a CPU that takes longer, by estimate, is divided among all cores (`cpu/kernels/parallel.rs` of `streamvm-ep`: 65,536 light
/// operations).
const LARGE: u64 = 16_000_000;

/// The program and what earlier passes have found.
pub(super) struct Given<'g> {
    pub(super) program: &'g Program,
    /// The numbers of the steps.
    pub(super) kept: &'g [usize],
    /// The values that each step of the program uses.
    pub(super) uses: &'g Lists<ValueUse>,
    pub(super) units: &'g [std::ops::Range<usize>],
    /// The stream of each unit.
    pub(super) streams: &'g [StreamKey],
    pub(super) dependences: &'g Dependences,
    pub(super) options: &'g CompileOptions,
    /// Functions are steps of segments; otherwise each that lies in no block is a segment by itself.
    pub(super) functions_join: bool,
}

/// Merges segments where the options allow lanes, and on a CUDA device graphs; `None` if none are merged. `uses` has what each unit declares of values that
/// several streams use.
pub(super) fn merge(
    given: &Given<'_>,
    division: &Division,
    homes: &[Home],
    uses: &Lists<Declared>,
) -> Option<Vec<Draft>> {
    let CompileOptions { lanes, check_finite, time_steps, step_by_step, .. } = *given.options;
    let Division { segments, clocks } = division;
    if lanes < 2 || check_finite || time_steps || step_by_step {
        return None;
    }
    let sets = sets(given, segments, clocks, homes, uses);
    if sets.is_empty() {
        return None;
    }
    let mut merged = joined(segments, sets);
    find_waits(&mut merged, given.dependences);
    find_waits_of_branches(&mut merged, given);
    Some(merged)
}

/// Segments that are to become one.
#[derive(Debug)]
struct Set {
    /// In ascending order.
    members: Vec<usize>,
    /// The first and the last member of each stream.
    ends: HashMap<StreamKey, (usize, usize)>,
    /// The segments outside that members come after.
    entries: HashSet<usize>,
    written: HashSet<ValueId>,
    declared: HashMap<ValueId, (Access, Footprint)>,
    /// Whether a segment that is in no set comes after a member: then no other segment may join.
    is_left: bool,
}

/// The order of segments: those that each comes after and those that come after it, by what they need and by the order of streams.
struct Order<'o> {
    segments: &'o [Draft],
    clocks: &'o [Clock],
    before: Vec<Vec<usize>>,
    behind: Vec<Vec<usize>>,
}

impl Order<'_> {
    fn new<'o>(segments: &'o [Draft], clocks: &'o [Clock]) -> Order<'o> {
        let (mut before, mut behind) = (Vec::with_capacity(segments.len()), vec![Vec::new(); segments.len()]);
        let mut last: HashMap<StreamKey, usize> = HashMap::new();
        for (number, Draft { stream, after, waits, .. }) in segments.iter().enumerate() {
            let mut earlier: Vec<usize> = after.iter().chain(waits).copied().collect();
            earlier.extend(last.insert(*stream, number));
            earlier.sort_unstable();
            earlier.dedup();
            earlier.iter().for_each(|&other| behind[other].push(number));
            before.push(earlier);
        }
        Order { segments, clocks, before, behind }
    }

    /// Whether `earlier` is `later`, or has passed when that one runs.
    fn precedes(&self, earlier: usize, later: usize) -> bool {
        let passed = self.clocks[later].get(&self.segments[earlier].stream);
        passed.is_some_and(|passed| *passed >= earlier)
    }
}

/// The sets of more than one lane that may be merged, in ascending order of their first members.
fn sets(given: &Given<'_>, segments: &[Draft], clocks: &[Clock], homes: &[Home], uses: &Lists<Declared>) -> Vec<Set> {
    let joins: Vec<bool> = segments.iter().map(|segment| may_join(given, segment)).collect();
    if joins.iter().all(|joins| *joins)
        && let Some(set) = whole(given, segments, homes)
    {
        return vec![set];
    }
    let order = Order::new(segments, clocks);
    let fixed = fixed_values(given, segments, &joins, homes);
    let mut sets: Vec<Set> = Vec::new();
    let mut open: HashMap<DeviceId, usize> = HashMap::new();
    for (number, segment) in segments.iter().enumerate() {
        if segment.stream.stream_type == StreamType::Critical {
            open.clear();
        }
        if !joins[number] {
            continue;
        }
        let added = Added::new(given, segment, homes, uses, &fixed);
        let last = open.get(&segment.stream.device).copied();
        let set = match last.filter(|&set| sets[set].takes(number, &added, &order, &joins)) {
            Some(set) => set,
            None => {
                sets.push(Set::new());
                sets.len() - 1
            }
        };
        open.insert(segment.stream.device, set);
        sets[set].add(number, added, &order, &joins);
    }
    sets.retain(|set| set.ends.len() > 1 && set.is_exact(&order));
    drop_unfit_sets(given, segments, (homes, uses), &mut sets);
    sets
}

/// The set of all segments, which all may join, if they are on several lanes of one device and write no more than an instruction may. No segment is outside, so none
/// waits longer; and like that of a program on one lane, the only segment of a program uses its buffers whole.
fn whole(given: &Given<'_>, segments: &[Draft], homes: &[Home]) -> Option<Set> {
    let mut set = Set::new();
    for (number, segment) in segments.iter().enumerate() {
        if segment.stream.device != segments[0].stream.device {
            return None;
        }
        let outputs = written(segment.units.iter().flat_map(|&unit| uses_of(given, unit)));
        // Other values of one segment lie in its arenas.
        let has_buffer = |value: &ValueId| match homes[value.0] {
            Home::Outside => true,
            Home::Own => !shares_an_arena(given.program.value(*value), segment.stream),
            Home::Arena(_) => false,
        };
        set.written.extend(outputs.filter(has_buffer));
        set.members.push(number);
        set.ends.entry(segment.stream).or_insert((number, number)).1 = number;
    }
    let writes = set.written.len() + set.ends.len() + SHARED;
    (set.ends.len() > 1 && writes <= MAX_WRITES).then_some(set)
}

/// Drops the sets that would write more buffers than an instruction may, and those that would declare bytes which no member uses, of a value that others use
/// too: the engine would let those wait. What only members of one set use has one buffer, all else has one for each value.
fn drop_unfit_sets(
    given: &Given<'_>,
    segments: &[Draft],
    (homes, uses): (&[Home], &Lists<Declared>),
    sets: &mut Vec<Set>,
) {
    if sets.is_empty() {
        return;
    }
    // Segments in no set have numbers after those of the sets.
    let mut set_of: Vec<usize> = (0..segments.len()).map(|number| sets.len() + number).collect();
    for (number, set) in sets.iter().enumerate() {
        set.members.iter().for_each(|&member| set_of[member] = number);
    }
    let mut users: HashMap<ValueId, HashSet<usize>> = HashMap::new();
    let mut written: Vec<HashSet<ValueId>> = vec![HashSet::new(); sets.len()];
    for (segment, &set) in segments.iter().zip(&set_of) {
        let uses = segment.units.iter().flat_map(|&unit| uses_of(given, unit));
        for it in uses.filter(|it| !matches!(homes[it.value.0], Home::Arena(_))) {
            users.entry(it.value).or_default().insert(set);
            if let Some(written) = written.get_mut(set).filter(|_| it.access.writes()) {
                written.insert(it.value);
            }
        }
    }
    let has_buffer =
        |value: &ValueId| homes[value.0] == Home::Outside || users.get(value).is_some_and(|users| users.len() > 1);
    let mut written = written.iter().map(|values| values.iter().filter(|value| has_buffer(value)).count());
    sets.retain(|set| {
        let fits = written.next().unwrap_or(0) + set.ends.len() + SHARED <= MAX_WRITES;
        fits && set.declares_what_it_uses(segments, uses, &has_buffer)
    });
}

/// What a segment adds to a set.
struct Added {
    written: HashSet<ValueId>,
    declared: HashMap<ValueId, (Access, Footprint)>,
}

impl Added {
    fn new(
        given: &Given<'_>,
        segment: &Draft,
        homes: &[Home],
        uses: &Lists<Declared>,
        fixed: &HashSet<ValueId>,
    ) -> Added {
        let outputs = written(segment.units.iter().flat_map(|&unit| uses_of(given, unit)));
        // Values that lanes give to each other share one buffer.
        let written = outputs.filter(|value| homes[value.0] == Home::Outside || fixed.contains(value)).collect();
        let mut declared = HashMap::new();
        for Declared { value, access, bytes } in segment.units.iter().flat_map(|&unit| &uses[unit]) {
            if fixed.contains(value) {
                declare(&mut declared, *value, *access, bytes);
            }
        }
        Added { written, declared }
    }
}

fn declare(known: &mut HashMap<ValueId, (Access, Footprint)>, value: ValueId, access: Access, bytes: &Footprint) {
    let known = known.entry(value).or_insert_with(|| (access, bytes.clone()));
    *known = (extents::both(known.0, access), extents::joined(&known.1, bytes));
}

impl Set {
    fn new() -> Set {
        Set {
            members: Vec::new(),
            ends: HashMap::new(),
            entries: HashSet::new(),
            written: HashSet::new(),
            declared: HashMap::new(),
            is_left: false,
        }
    }

    /// Whether the rules hold with one more segment, as far as they can be judged before later segments are known.
    fn takes(&self, number: usize, added: &Added, order: &Order<'_>, joins: &[bool]) -> bool {
        let stream = order.segments[number].stream;
        let leaves = order.behind[number].iter().any(|&later| !joins[later]);
        let comes_after_all = || self.ends.values().all(|&(_, last)| order.precedes(last, number));
        if self.is_left || leaves && !comes_after_all() {
            return false;
        }
        let enters = |outside: usize| {
            order.precedes(outside, number) && self.ends.values().all(|&(first, _)| order.precedes(outside, first))
        };
        let mut before = order.before[number].iter().filter(|&&earlier| !self.has(earlier));
        let is_new = !self.ends.contains_key(&stream);
        let entered = before.all(|&earlier| enters(earlier))
            && (!is_new || self.entries.iter().all(|&entry| order.precedes(entry, number)));
        // Each lane may have an arena.
        let lanes = self.ends.len() + usize::from(is_new);
        let written = self.written.union(&added.written).count() + lanes + SHARED;
        let is_exact = |(value, (access, bytes)): (&ValueId, &(Access, Footprint))| {
            let one = self.declared.get(value);
            one.is_none_or(|(one, of_one)| join_exactly((*one, of_one), (*access, bytes)))
        };
        entered && written <= MAX_WRITES && added.declared.iter().all(is_exact)
    }

    fn has(&self, segment: usize) -> bool {
        self.members.binary_search(&segment).is_ok()
    }

    fn add(&mut self, number: usize, added: Added, order: &Order<'_>, joins: &[bool]) {
        let outside: Vec<usize> = order.before[number].iter().copied().filter(|&earlier| !self.has(earlier)).collect();
        self.entries.extend(outside);
        self.members.push(number);
        let ends = self.ends.entry(order.segments[number].stream).or_insert((number, number));
        ends.1 = number;
        self.written.extend(added.written);
        for (value, (access, bytes)) in added.declared {
            declare(&mut self.declared, value, access, &bytes);
        }
        self.is_left |= order.behind[number].iter().any(|&later| !joins[later]);
    }

    /// Whether the bytes that the merged segment declares, of the values of which `counts` says so, are those that members use.
    fn declares_what_it_uses(
        &self,
        segments: &[Draft],
        uses: &Lists<Declared>,
        counts: &impl Fn(&ValueId) -> bool,
    ) -> bool {
        let mut known: HashMap<ValueId, (Access, Footprint)> = HashMap::new();
        self.members.iter().all(|&member| {
            let mut own = HashMap::new();
            let declared = segments[member].units.iter().flat_map(|&unit| &uses[unit]);
            for Declared { value, access, bytes } in declared.filter(|declared| counts(&declared.value)) {
                declare(&mut own, *value, *access, bytes);
            }
            own.into_iter().all(|(value, (access, bytes))| {
                let before = known.get(&value);
                let is_exact = before.is_none_or(|(one, of_one)| join_exactly((*one, of_one), (access, &bytes)));
                declare(&mut known, value, access, &bytes);
                is_exact
            })
        })
    }

    /// Whether every segment outside that comes after a member comes after all of them.
    fn is_exact(&self, order: &Order<'_>) -> bool {
        let behind = self.members.iter().flat_map(|&member| &order.behind[member]);
        let mut outside = behind.filter(|&&later| !self.has(later));
        outside.all(|&later| self.ends.values().all(|&(_, last)| order.precedes(last, later)))
    }
}

fn steps_of<'g>(given: &Given<'g>, unit: usize) -> impl Iterator<Item = &'g Step> + use<'g> {
    let Given { program, kept, units, .. } = *given;
    kept[units[unit].clone()].iter().map(|&number| &program.steps[number])
}

fn uses_of<'g>(given: &Given<'g>, unit: usize) -> impl Iterator<Item = &'g ValueUse> + use<'g> {
    let Given { kept, uses, units, .. } = *given;
    kept[units[unit].clone()].iter().flat_map(|&number| &uses[number])
}

/// Whether a segment may be a part of one with branches.
fn may_join(given: &Given<'_>, segment: &Draft) -> bool {
    let Given { program, options, functions_join, .. } = *given;
    let is_captured = |step: &Step| {
        let key = if let Work::Call(op, _) = &step.work { step.operands.get(op.key_input()) } else { None };
        step.work.is_captured(key.map(|operand| program.value(operand.value).dtype))
    };
    // By estimate, because a measured time is that of all cores together.
    let cost = |step: &Step| cost(program, step, &Costs::default());
    let is_small = |step: &Step| match &step.work {
        Work::Function(_) => functions_join,
        Work::Touch(_) => false,
        work => !work.is_mark() && cost(step) < LARGE,
    };
    let mut steps = segment.units.iter().flat_map(|&unit| steps_of(given, unit));
    // The recording has chosen the stream of such a step, and a branch has that of its segment.
    let is_chosen = |step: &Step| step.lane != 0;
    // Neighbouring elementwise steps over more elements than a block may run together, and are divided together.
    let mut together: u64 = 0;
    let mut is_small_together = |step: &Step| {
        let is_elementwise = match &step.work {
            Work::Call(op, _) => op.is_elementwise(),
            work => matches!(work, Work::Copy | Work::Fill(_)),
        };
        let may_fuse = options.fuse && is_elementwise && size(step) > options.block as u64;
        together = if may_fuse { together.saturating_add(cost(step)) } else { 0 };
        together < LARGE
    };
    let lanes = segment.stream.device.kind.info().lanes;
    let may_join = |step: &Step| match lanes {
        _ if is_chosen(step) => false,
        Lanes::OnThreads => is_small(step) && is_small_together(step),
        Lanes::InGraphs => options.capture && is_captured(step),
        Lanes::InOrder => false,
    };
    segment.stream.stream_type == StreamType::Compute && steps.all(may_join)
}

/// The values with memory of their own that segments use which join no set: lanes cannot have them for themselves.
fn fixed_values(given: &Given<'_>, segments: &[Draft], joins: &[bool], homes: &[Home]) -> HashSet<ValueId> {
    let mut fixed: HashSet<ValueId> =
        homes.iter().enumerate().filter(|(_, home)| **home == Home::Outside).map(|(index, _)| ValueId(index)).collect();
    for (segment, _) in segments.iter().zip(joins).filter(|(_, joins)| !**joins) {
        let uses = segment.units.iter().flat_map(|&unit| uses_of(given, unit));
        fixed.extend(uses.map(|it| it.value));
    }
    fixed.retain(|value| !matches!(homes[value.0], Home::Arena(_)));
    fixed
}

/// The segments, each set as one of them, in the place of its first member. What they wait for is found later.
fn joined(segments: &[Draft], sets: Vec<Set>) -> Vec<Draft> {
    let mut set_of = vec![None; segments.len()];
    for (number, set) in sets.iter().enumerate() {
        set.members.iter().for_each(|&member| set_of[member] = Some(number));
    }
    // The merged segment of each set, as an index of those made so far, and its streams.
    let mut places: Vec<Option<usize>> = vec![None; sets.len()];
    let mut lanes: Vec<Vec<StreamKey>> = vec![Vec::new(); sets.len()];
    let mut merged: Vec<Draft> = Vec::new();
    for (segment, set) in segments.iter().zip(set_of) {
        let Some(set) = set else {
            merged.push(segment.clone());
            continue;
        };
        let place = *places[set].get_or_insert_with(|| {
            let (stream, units, branches) = (segment.stream, Vec::new(), Vec::new());
            merged.push(Draft { stream, units, after: Vec::new(), waits: Vec::new(), branches });
            merged.len() - 1
        });
        let known = lanes[set].iter().position(|stream| *stream == segment.stream);
        let lane = known.unwrap_or_else(|| {
            lanes[set].push(segment.stream);
            lanes[set].len() - 1
        });
        let Draft { units, branches, .. } = &mut merged[place];
        let begin = units.len();
        units.extend_from_slice(&segment.units);
        branches.push(DraftBranch { units: begin..units.len(), lane, after: Vec::new() });
    }
    merged
}

/// Finds which branches of other lanes of its segment each branch waits for.
fn find_waits_of_branches(segments: &mut [Draft], given: &Given<'_>) {
    // The segment and the branch of each unit that is in one.
    let mut place_of = vec![None; given.units.len()];
    for (number, Draft { units, branches, .. }) in segments.iter().enumerate() {
        for (branch, of) in branches.iter().enumerate() {
            units[of.units.clone()].iter().for_each(|&unit| place_of[unit] = Some((number, branch)));
        }
    }
    for (segment, Draft { units, branches, .. }) in segments.iter_mut().enumerate() {
        let streams: Vec<StreamKey> = branches.iter().map(|branch| given.streams[units[branch.units.start]]).collect();
        let stream_of = |branch: usize| streams[branch];
        let mut clocks: Vec<Clock> = Vec::with_capacity(branches.len());
        let mut last: HashMap<StreamKey, usize> = HashMap::new();
        for (number, branch) in branches.iter_mut().enumerate() {
            let earlier = units[branch.units.clone()].iter().flat_map(|&unit| &given.dependences.all[unit]);
            let places = earlier.filter_map(|&unit| place_of[unit]);
            let within = places.filter(|&(of, _)| of == segment).map(|(_, branch)| branch);
            let mut after: Vec<usize> = within.filter(|&other| stream_of(other) != stream_of(number)).collect();
            after.sort_unstable();
            after.dedup();
            let own = last.insert(stream_of(number), number);
            let mut clock = own.map(|own| clocks[own].clone()).unwrap_or_default();
            let needed = latest(&after, stream_of, &clocks, &mut clock, |_| true);
            raise(&mut clock, stream_of(number), number);
            clocks.push(clock);
            if !given.options.has(Mutant::BranchWaitDropped) {
                branch.after = needed;
            }
        }
    }
}

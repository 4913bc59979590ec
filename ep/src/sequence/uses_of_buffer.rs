//! The uses of the bytes of one buffer, found by range and lane.
//!
//! A [`LatestUses`] is a segment tree over ranges of numbers, with the latest use by each lane in every node. Dense uses are in one tree, by their bytes, in
//! which the runs of another use are looked for. Strided uses are in two trees for each stride: one has their spans, the other their *residues*, the bytes that
//! they use of a row as long as the stride. Each tree may find a use that shares no byte with the one that is looked for; where one of the two finds nothing, no use does. So columns of
//! a matrix, whose spans overlap, are told apart by their residues. Where both find something, the uses without an order are compared
//! one by one.
//!
//! Invariants:
//! * Uses are noted in their order: a later use of a lane has a larger number, and a place that is not smaller.
//! * Every range of numbers that is noted was added to the bounds before.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use crate::tensor::footprint::Footprint;

/// A use of bytes of a buffer.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) bytes: Footprint,
    pub(super) writes: bool,
    pub(super) step: usize,
    pub(super) lane: usize,
    /// The place of its branch among those of its lane, from 1.
    pub(super) place: usize,
}

/// The stride of uses that are one range of bytes.
const DENSE: usize = 1;

/// The stride of uses that are not evenly spaced runs.
const UNEVEN: usize = 0;

fn stride_of(bytes: &Footprint) -> usize {
    match bytes.runs() {
        Some((stride, _)) => stride,
        None if bytes.is_dense() => DENSE,
        None => UNEVEN,
    }
}

/// The parts of a row as long as `stride` that a use may touch: a run of it in a row, or all.
fn residues(bytes: &Footprint, stride: usize) -> SmallVec<[Range<usize>; 2]> {
    let run = match bytes.runs() {
        Some((own, run)) if own == stride => run,
        None if bytes.is_dense() => bytes.span().len(),
        _ => stride,
    };
    if run >= stride {
        return smallvec![0..stride];
    }
    let first = bytes.span().start % stride;
    match (first + run).checked_sub(stride) {
        // The run goes on in the next row.
        Some(over) if over > 0 => smallvec![first..stride, 0..over],
        _ => smallvec![first..first + run],
    }
}

/// The most runs of a use that are looked for one by one.
const MOST_RUNS: usize = 1024;

/// The bounds of the ranges that will be noted, by stride.
#[derive(Clone, Default, Debug)]
pub(super) struct Bounds(SmallVec<[BoundsOfStride; 1]>);

#[derive(Clone, Default, Debug)]
struct BoundsOfStride {
    stride: usize,
    spans: Vec<usize>,
    residues: Vec<usize>,
}

impl Bounds {
    pub(super) fn add(&mut self, bytes: &Footprint) {
        if bytes.is_empty() {
            return;
        }
        let stride = stride_of(bytes);
        let known = self.0.iter().position(|it| it.stride == stride);
        let known = known.unwrap_or_else(|| {
            self.0.push(BoundsOfStride { stride, ..BoundsOfStride::default() });
            self.0.len() - 1
        });
        let of_stride = &mut self.0[known];
        of_stride.spans.extend([bytes.span().start, bytes.span().end]);
        if stride > DENSE {
            of_stride.residues.extend(residues(bytes, stride).iter().flat_map(|part| [part.start, part.end]));
        }
    }
}

/// The uses of one buffer so far.
#[derive(Debug)]
pub(super) struct UsesOfBuffer(SmallVec<[UsesOfStride; 1]>);

#[derive(Debug)]
struct UsesOfStride {
    stride: usize,
    /// Writes, and reads.
    spans: [LatestUses; 2],
    residues: [LatestUses; 2],
    /// The numbers of all uses, by lane.
    all: BTreeMap<usize, Vec<usize>>,
}

impl UsesOfBuffer {
    /// No uses. Those that will be noted have these bounds.
    pub(super) fn within(bounds: Bounds) -> UsesOfBuffer {
        let of_stride = |BoundsOfStride { stride, spans, residues }| UsesOfStride {
            stride,
            spans: LatestUses::with_reads(spans),
            residues: LatestUses::with_reads(residues),
            all: BTreeMap::new(),
        };
        UsesOfBuffer(bounds.0.into_iter().map(of_stride).collect())
    }

    /// A noted use that shares bytes with `it`, one of the two writing, and of which `is_unordered` is true; if it is true of a use, it is true of the later uses by
    /// the same lane. `uses` are all uses by their numbers.
    pub(super) fn find<'u>(&self, it: &Use, uses: &'u [Use], is_unordered: &dyn Fn(&Use) -> bool) -> Option<&'u Use> {
        let is_found = |number: usize| is_unordered(&uses[number]);
        // What reads shares with reads does not matter.
        let trees = if it.writes { 2 } else { 1 };
        let find_in = |of_stride: &[LatestUses; 2], range: &Range<usize>| {
            of_stride[..trees].iter().find_map(|tree| tree.find(range, &is_found))
        };
        self.0.iter().find_map(|of_stride| {
            find_in(&of_stride.spans, &it.bytes.span())?;
            if of_stride.stride == DENSE
                && let Some(mut runs) = it.bytes.each_run(MOST_RUNS)
            {
                return runs.find_map(|run| find_in(&of_stride.spans, &run)).map(|number| &uses[number]);
            }
            if of_stride.stride > DENSE {
                let residues = residues(&it.bytes, of_stride.stride);
                residues.iter().find_map(|part| find_in(&of_stride.residues, part))?;
            }
            of_stride.all.values().find_map(|of_lane| {
                let of_lane = of_lane.iter().rev().map(|&number| &uses[number]);
                let mut unordered = of_lane.take_while(|other| is_unordered(other));
                unordered.find(|other| (it.writes || other.writes) && other.bytes.overlaps(&it.bytes))
            })
        })
    }

    /// Notes the use of this number.
    pub(super) fn note(&mut self, it: &Use, number: usize) {
        let stride = stride_of(&it.bytes);
        let Some(of_stride) = self.0.iter_mut().find(|of_stride| of_stride.stride == stride) else {
            unreachable!("its bounds were added before")
        };
        let tree = usize::from(!it.writes);
        of_stride.spans[tree].note(&it.bytes.span(), it.lane, number);
        if stride > DENSE {
            residues(&it.bytes, stride).iter().for_each(|part| of_stride.residues[tree].note(part, it.lane, number));
        }
        of_stride.all.entry(it.lane).or_default().push(number);
    }
}

/// For each lane the number of a use.
type Latest = SmallVec<[(usize, usize); 1]>;

fn set(latest: &mut Latest, lane: usize, number: usize) {
    match latest.iter_mut().find(|(known, _)| *known == lane) {
        Some((_, latest)) => *latest = number,
        None => latest.push((lane, number)),
    }
}

/// A segment tree: node 1 is the root, the children of node `n` are `2n` and `2n + 1`, and the leaves are the ranges between neighbouring bounds.
#[derive(Debug)]
struct LatestUses {
    /// In ascending order.
    bounds: Vec<usize>,
    /// A power of two.
    leaves: usize,
    nodes: Vec<Node>,
}

#[derive(Clone, Default, Debug)]
struct Node {
    /// The latest uses of some part of the node's range.
    of_parts: Latest,
    /// The latest uses that cover the node's range, and not that of its parent.
    of_all: Latest,
}

impl LatestUses {
    /// A tree for writes, and one for reads.
    fn with_reads(mut bounds: Vec<usize>) -> [LatestUses; 2] {
        bounds.sort_unstable();
        bounds.dedup();
        let leaves = bounds.len().next_power_of_two();
        let tree = || LatestUses { bounds: bounds.clone(), leaves, nodes: vec![Node::default(); 2 * leaves] };
        [tree(), tree()]
    }

    /// The leaves that these numbers touch.
    fn leaves_of(&self, numbers: &Range<usize>) -> Range<usize> {
        let first = self.bounds.partition_point(|bound| *bound <= numbers.start).saturating_sub(1);
        first..self.bounds.partition_point(|bound| *bound < numbers.end)
    }

    fn note(&mut self, numbers: &Range<usize>, lane: usize, number: usize) {
        let leaves = self.leaves_of(numbers);
        self.note_below(1, 0..self.leaves, &leaves, (lane, number));
    }

    fn note_below(&mut self, node: usize, own: Range<usize>, wanted: &Range<usize>, (lane, number): (usize, usize)) {
        if own.end <= wanted.start || wanted.end <= own.start {
            return;
        }
        set(&mut self.nodes[node].of_parts, lane, number);
        if wanted.start <= own.start && own.end <= wanted.end {
            return set(&mut self.nodes[node].of_all, lane, number);
        }
        let middle = own.start.midpoint(own.end);
        self.note_below(2 * node, own.start..middle, wanted, (lane, number));
        self.note_below(2 * node + 1, middle..own.end, wanted, (lane, number));
    }

    /// The latest use by a lane that touches these numbers, and for which `is_found` is true.
    fn find(&self, numbers: &Range<usize>, is_found: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.find_below(1, 0..self.leaves, &self.leaves_of(numbers), is_found)
    }

    fn find_below(
        &self,
        node: usize,
        own: Range<usize>,
        wanted: &Range<usize>,
        is_found: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        if own.end <= wanted.start || wanted.end <= own.start {
            return None;
        }
        let found_in = |latest: &Latest| latest.iter().map(|(_, number)| *number).find(|number| is_found(*number));
        let Node { of_parts, of_all } = &self.nodes[node];
        let of_parts = found_in(of_parts)?;
        if wanted.start <= own.start && own.end <= wanted.end {
            return Some(of_parts);
        }
        let middle = own.start.midpoint(own.end);
        found_in(of_all)
            .or_else(|| self.find_below(2 * node, own.start..middle, wanted, is_found))
            .or_else(|| self.find_below(2 * node + 1, middle..own.end, wanted, is_found))
    }
}

//! The edges of a compiled program: its dependences and orders without those that follow from others, and what keeps each.

use std::fmt::{self, Write as _};

use hashbrown::HashMap;

use crate::plan::compiled::{Compiled, Segment, SegmentBranch};
use crate::show::dependences::{Dependence, DependenceKind};
use crate::show::orders::OrderedSteps;

/// A step that must come after an earlier one, by their positions in [`Compiled::steps`], where that follows from no other edges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The earlier step.
    pub from: usize,
    /// The later step.
    pub to: usize,
    /// The uses of bytes that make the edge; empty where only an order of the recording does.
    pub dependences: Vec<Dependence>,
    /// The mechanism that makes the later step wait.
    pub kept_by: KeptBy,
}

/// The mechanism that makes a step wait until an earlier one has passed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptBy {
    /// One stream runs both, or one lane of a segment, in their order.
    SameThread,
    /// Another lane of their segment runs the earlier one: each of these branches waits for the one before it.
    OtherThread(Vec<(usize, usize)>),
    /// Another stream runs the earlier one: pairs of segments, of which the second waits for an event that is recorded after the first.
    Events(Vec<(usize, usize)>),
}

impl Compiled {
    /// The edges, sorted by their steps. Takes time in proportion to the steps times the [dependences](Compiled::dependences), divided by 64, and for each edge
    /// between streams or lanes to the segments or branches between its ends.
    pub fn edges(&self) -> Vec<Edge> {
        let dependences = self.dependences();
        self.edges_of(&dependences, &self.ordered_steps(&dependences))
    }

    /// [`edges`](Compiled::edges), from all dependences and orders of this program.
    pub(super) fn edges_of(&self, dependences: &[Dependence], orders: &[OrderedSteps]) -> Vec<Edge> {
        let pairs =
            orders.iter().flat_map(|it| it.lasts.iter().flat_map(|from| it.firsts.iter().map(|to| (*from, *to))));
        let mut earlier: Vec<Vec<usize>> = vec![Vec::new(); self.step_count()];
        pairs.chain(dependences.iter().map(|it| (it.from, it.to))).for_each(|(from, to)| earlier[to].push(from));
        for from in &mut earlier {
            from.sort_unstable_by(|one, other| other.cmp(one));
            from.dedup();
        }
        remove_implied(&mut earlier);
        let order = StreamOrder::of(&self.segments);
        let mut edges = Vec::new();
        for (to, all) in earlier.iter().enumerate() {
            for &from in all {
                let first = dependences.partition_point(|it| (it.from, it.to) < (from, to));
                let own = dependences[first..].iter().take_while(|it| (it.from, it.to) == (from, to));
                edges.push(Edge {
                    from,
                    to,
                    dependences: own.copied().collect(),
                    kept_by: self.kept_by(&order, from, to),
                });
            }
        }
        edges.sort_unstable_by_key(|edge| (edge.from, edge.to));
        edges
    }

    /// The edges as text, a line each: the steps, what they use, and what keeps the edge.
    pub fn show_edges(&self) -> String {
        let edges = self.edges();
        let rows: Vec<[String; 3]> = edges.iter().map(|edge| self.row(edge)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let [steps, why] = [0, 1].map(width);
        let plural = if edges.len() == 1 { "" } else { "s" };
        let mut text = format!("{} edge{plural} of program {}\n", edges.len(), self.program.name);
        for [between, uses, kept] in &rows {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{between:<steps$}  {uses:<why$}  {kept}");
        }
        text
    }

    /// Why an edge with these dependences is there.
    pub(super) fn uses_of(&self, dependences: &[Dependence]) -> Vec<String> {
        if dependences.is_empty() {
            return vec!["order".to_owned()];
        }
        let of = |Dependence { kind, buffer, .. }: &Dependence| {
            let buffer = (*buffer).map_or_else(|| "scratch".to_owned(), |buffer| self.buffer_name(buffer));
            format!("{kind} of {buffer}")
        };
        dependences.iter().map(of).collect()
    }

    fn row(&self, edge: &Edge) -> [String; 3] {
        let kept = match &edge.kept_by {
            KeptBy::SameThread => {
                let segment = &self.segments[self.segment_of(edge.from)];
                match branch_of(segment, edge.from) {
                    Some(branch) => {
                        format!("same thread: lane {} of {}", segment.branches[branch].lane, segment.stream)
                    }
                    None => format!("same thread: {}", segment.stream),
                }
            }
            KeptBy::OtherThread(waits) => format!("other thread: {}", waits_of("branch", waits)),
            KeptBy::Events(waits) => format!("event: {}", waits_of("segment", waits)),
        };
        [format!("%{} -> %{}", edge.from, edge.to), self.uses_of(&edge.dependences).join(", "), kept]
    }

    fn segment_of(&self, position: usize) -> usize {
        self.segments.partition_point(|segment| segment.steps.end <= position)
    }

    fn kept_by(&self, order: &StreamOrder, from: usize, to: usize) -> KeptBy {
        let [earlier, later] = [from, to].map(|position| self.segment_of(position));
        let segments = &self.segments;
        if earlier == later {
            let branches = &segments[later].branches;
            let [Some(from), Some(to)] = [from, to].map(|position| branch_of(&segments[later], position)) else {
                return KeptBy::SameThread;
            };
            if branches[from].lane == branches[to].lane {
                return KeptBy::SameThread;
            }
            let waits = |branch: usize| branches[branch].after.iter().copied();
            return KeptBy::OtherThread(
                path(from, to, waits, &order.branches[later]).unwrap_or_else(|| vec![(from, to)]),
            );
        }
        // Copies of one stream may end on other streams.
        if segments[earlier].stream == segments[later].stream && !segments[earlier].is_transfer() {
            return KeptBy::SameThread;
        }
        let waits = |segment: usize| segments[segment].after.iter().chain(&segments[segment].waits).copied();
        // Where the plan names no wait, both segments declare a use of one buffer, and the engine lets the later one wait.
        KeptBy::Events(path(earlier, later, waits, &order.segments).unwrap_or_else(|| vec![(earlier, later)]))
    }
}

/// The predecessor of each segment on its stream, and of each branch on its lane.
struct StreamOrder {
    segments: Vec<Option<usize>>,
    /// For each segment those of its branches.
    branches: Vec<Vec<Option<usize>>>,
}

impl StreamOrder {
    fn of(segments: &[Segment]) -> StreamOrder {
        let of_lanes = |segment: &Segment| previous(segment.branches.iter().map(|branch| branch.lane));
        StreamOrder {
            segments: previous(segments.iter().map(|segment| segment.stream)),
            branches: segments.iter().map(of_lanes).collect(),
        }
    }
}

fn waits_of(what: &str, waits: &[(usize, usize)]) -> String {
    let waits: Vec<String> = waits.iter().map(|(from, to)| format!("{what} {to} waits for {what} {from}")).collect();
    waits.join(", ")
}

/// The branch of a step, if its segment has branches.
fn branch_of(segment: &Segment, position: usize) -> Option<usize> {
    let branch = segment.branches.partition_point(|SegmentBranch { steps, .. }| steps.end <= position);
    (branch < segment.branches.len()).then_some(branch)
}

/// For each segment or branch the one before it on its stream or lane.
fn previous<T: Copy + Eq + std::hash::Hash>(places: impl Iterator<Item = T>) -> Vec<Option<usize>> {
    let mut last = HashMap::new();
    places.enumerate().map(|(number, place)| last.insert(place, number)).collect()
}

/// The waits on the shortest path from `from` to the later `to`: over waits, and over what runs before it on its own stream or lane, which needs none.
fn path<I: Iterator<Item = usize>>(
    from: usize,
    to: usize,
    waits: impl Fn(usize) -> I,
    previous: &[Option<usize>],
) -> Option<Vec<(usize, usize)>> {
    // For each segment or branch that the search has reached: the later one that it was reached from, and whether that one waits for it.
    let mut reached: HashMap<usize, (usize, bool)> = HashMap::new();
    let (mut found, mut next) = (vec![to], 0);
    while let Some(&at) = found.get(next) {
        next += 1;
        if at == from {
            let (mut path, mut at) = (Vec::new(), from);
            while at != to {
                let (later, is_wait) = reached[&at];
                if is_wait {
                    path.push((at, later));
                }
                at = later;
            }
            return Some(path);
        }
        for (earlier, is_wait) in waits(at).map(|it| (it, true)).chain(previous[at].map(|it| (it, false))) {
            if earlier >= from && earlier != to && !reached.contains_key(&earlier) {
                reached.insert(earlier, (at, is_wait));
                found.push(earlier);
            }
        }
    }
    None
}

/// How many steps are looked for at a time: a row of so many bits for each step.
const COLUMNS: usize = 1024;

/// Removes from the earlier steps of each step, which are sorted in descending order, those that another one of them comes after.
fn remove_implied(earlier: &mut [Vec<usize>]) {
    const WORDS: usize = COLUMNS / 64;
    let mut rows: Vec<[u64; WORDS]> = vec![[0; WORDS]; earlier.len()];
    for first in (0..earlier.len()).step_by(COLUMNS) {
        // Row of a step: which of the steps from `first` on it comes after.
        for to in first..earlier.len() {
            let mut row = [0; WORDS];
            earlier[to].retain(|&from| {
                let Some(column) = from.checked_sub(first) else { return true };
                let is_here = column < COLUMNS;
                let is_implied = is_here && row[column / 64] >> (column % 64) & 1 == 1;
                if !is_implied {
                    row.iter_mut().zip(&rows[from]).for_each(|(word, other)| *word |= other);
                    if is_here {
                        row[column / 64] |= 1 << (column % 64);
                    }
                }
                !is_implied
            });
            rows[to] = row;
        }
    }
}

impl fmt::Display for DependenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DependenceKind::ReadAfterWrite => "read after write",
            DependenceKind::WriteAfterRead => "write after read",
            DependenceKind::WriteAfterWrite => "write after write",
        })
    }
}

//! The verifier against the most naive checker that there can be, on random traces: order as a matrix of reachability,
//! memory byte by byte, excess by leaving each wait out and starting again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::cases::cases;
use proptest::prelude::*;
use streamvm_verify::{Listed, Missing, Point, Report, Trace, verify};

const STREAMS: usize = 3;
const BYTES: usize = 10;

/// What a line of a random trace may be; the numbers are reduced to what makes sense where it stands.
#[derive(Clone, Debug)]
enum Draw {
    Instruction {
        stream: usize,
        uses: Vec<(usize, usize, u8)>,
        waits: Vec<(usize, usize, bool)>,
        order: (u8, usize, usize),
    },
    Record {
        stream: usize,
        seq: usize,
        event: usize,
    },
    Observed(Vec<(usize, usize)>),
    Host(Vec<(usize, usize, u8)>),
    Unmap(usize, usize),
}

#[derive(Clone, Debug)]
enum Node {
    Instruction { stream: usize, uses: Vec<(usize, usize, u8)>, waits: Vec<Option<(usize, usize)>>, asked: Asked },
    Observed(Vec<(usize, usize)>),
    Host(Vec<(usize, usize, u8)>),
    Unmap(usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Nothing,
    After(usize, usize),
    All,
    Barrier,
}

/// First byte, length, and access: read, write or both; 3 more if it is recorded as its hull.
fn uses() -> impl Strategy<Value = Vec<(usize, usize, u8)>> {
    prop::collection::vec((0..BYTES, 1..5_usize, prop_oneof![4 => 0..3_u8, 1 => 3..6_u8]), 0..3)
}

/// Whether a use that is recorded as its hull may leave this byte of it untouched.
fn between_ends(u: &(usize, usize, u8), byte: usize) -> bool {
    let end = (u.0 + u.1).min(BYTES);
    u.2 >= 3 && byte != u.0 && byte + 1 != end
}

fn draw() -> impl Strategy<Value = Draw> {
    let any = 0..1000_usize;
    let waits = prop::collection::vec((0..STREAMS, any.clone(), prop::bool::weighted(0.2)), 0..3);
    prop_oneof![
        12 => (0..STREAMS, uses(), waits, (0..24_u8, 0..STREAMS, any.clone()))
            .prop_map(|(stream, uses, waits, order)| Draw::Instruction { stream, uses, waits, order }),
        2 => (0..STREAMS, any.clone(), 0..3_usize).prop_map(|(stream, seq, event)| Draw::Record { stream, seq, event }),
        1 => prop::collection::vec((0..STREAMS, any), 1..3).prop_map(Draw::Observed),
        1 => uses().prop_map(Draw::Host),
        1 => (0..BYTES, 1..4_usize).prop_map(|(start, bytes)| Draw::Unmap(start, bytes)),
    ]
}

/// A trace as text, and as the naive checker takes it. Node `n` stands in line `lines[n]`.
struct Drawn {
    text: String,
    nodes: Vec<Node>,
    lines: Vec<u64>,
    unordered: bool,
}

fn write_uses(text: &mut String, uses: &[(usize, usize, u8)]) {
    text.push_str(",\"uses\":[");
    for (index, (start, bytes, access)) in uses.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let hull = if *access >= 3 { ",\"hull\":true" } else { "" };
        let access = ["read", "write", "readwrite"][*access as usize % 3];
        let end = (start + bytes).min(BYTES);
        write!(text, "{comma}{{\"life\":0,\"access\":\"{access}\",\"runs\":[[{start},{end}]]{hull}}}").unwrap();
    }
    text.push(']');
}

/// Makes a trace of the draws. With `forward`, a wait may name a point that comes later or never.
fn make(draws: &[Draw], unordered: bool, forward: bool) -> Drawn {
    let mut text = String::from("{\"streamvm_trace\":1}\n");
    for stream in 0..STREAMS {
        let ordered = !(unordered && stream == STREAMS - 1);
        writeln!(text, "{{\"stream\":{{\"id\":{stream},\"name\":\"s{stream}\",\"ordered\":{ordered}}}}}").unwrap();
    }
    writeln!(text, "{{\"life\":{{\"id\":0,\"kind\":\"device\",\"base\":0,\"bytes\":{BYTES}}}}}").unwrap();
    let mut drawn = Drawn { text, nodes: Vec::new(), lines: Vec::new(), unordered };
    let mut submitted = [0_usize; STREAMS];
    let mut events: [Option<(usize, usize)>; 3] = [None; 3];
    for draw in draws {
        let line = drawn.text.lines().count() as u64 + 1;
        let text = &mut drawn.text;
        let seq_of = |stream: usize, seq: usize, extra: usize| match submitted[stream] + extra {
            0 => None,
            most => Some((stream, seq % most + 1)),
        };
        let node = match draw {
            Draw::Record { stream, seq, event } => {
                let Some(point) = seq_of(*stream, *seq, 0) else { continue };
                events[*event] = Some(point);
                writeln!(text, "{{\"record\":{{\"event\":{event},\"point\":[{},{}]}}}}", point.0, point.1).unwrap();
                continue;
            }
            Draw::Instruction { stream, uses, waits, order } => {
                let asked = match order {
                    (0, stream, seq) => seq_of(*stream, *seq, 0).map_or(Asked::Nothing, |(s, q)| Asked::After(s, q)),
                    (1, ..) => Asked::All,
                    (2, ..) => Asked::Barrier,
                    _ => Asked::Nothing,
                };
                submitted[*stream] += 1;
                write!(
                    text,
                    "{{\"instruction\":{{\"at\":[{stream},{}],\"op\":\"o\",\"location\":\"x\"",
                    submitted[*stream]
                )
                .unwrap();
                write_uses(text, uses);
                text.push_str(",\"waits\":[");
                let mut made = Vec::new();
                for (source, seq, by_event) in waits {
                    let seq_of = |extra: usize| match submitted[*source] + extra {
                        0 => None,
                        most => Some((*source, seq % most + 1)),
                    };
                    let event = events.iter().position(|event| event.is_some_and(|at| at.0 == *source));
                    let (point, event) = match (by_event, event) {
                        // What the wait says of the point does not matter; what the event marks does.
                        (true, Some(event)) => ((*source, 1), Some(event)),
                        _ => match seq_of(usize::from(forward)) {
                            Some(point) if forward || point != (*stream, submitted[*stream]) => (point, None),
                            _ => continue,
                        },
                    };
                    let comma = if made.is_empty() { "" } else { "," };
                    write!(text, "{comma}{{\"point\":[{},{}],\"by\":\"device\"", point.0, point.1).unwrap();
                    if let Some(event) = event {
                        write!(text, ",\"event\":{event}").unwrap();
                    }
                    text.push('}');
                    made.push(event.map_or(Some(point), |event| events[event]));
                }
                text.push(']');
                match asked {
                    Asked::Nothing => {}
                    Asked::After(stream, seq) => write!(text, ",\"order\":{{\"after\":[{stream},{seq}]}}").unwrap(),
                    Asked::All => text.push_str(",\"order\":\"all\""),
                    Asked::Barrier => text.push_str(",\"order\":\"barrier\""),
                }
                text.push_str("}}\n");
                Node::Instruction { stream: *stream, uses: uses.clone(), waits: made, asked }
            }
            Draw::Observed(points) => {
                let points: Vec<_> = points.iter().filter_map(|(stream, seq)| seq_of(*stream, *seq, 0)).collect();
                writeln!(text, "{{\"observed\":{{\"points\":{points:?}}}}}").unwrap();
                *text = text.replace('(', "[").replace(')', "]");
                Node::Observed(points)
            }
            Draw::Host(uses) => {
                text.push_str("{\"host\":{\"op\":\"h\",\"location\":\"x\"");
                write_uses(text, uses);
                text.push_str("}}\n");
                Node::Host(uses.clone())
            }
            Draw::Unmap(start, bytes) => {
                let bytes = (*bytes).min(BYTES - start);
                writeln!(text, "{{\"unmap\":{{\"base\":{start},\"bytes\":{bytes}}}}}").unwrap();
                Node::Unmap(*start, start + bytes)
            }
        };
        drawn.nodes.push(node);
        drawn.lines.push(line);
    }
    writeln!(drawn.text, "{{\"end\":{{\"lines\":{}}}}}", drawn.text.lines().count()).unwrap();
    drawn
}

/// What is known of one byte.
#[derive(Default)]
struct Past {
    write: Option<usize>,
    reads: Vec<usize>,
    hull_writes: Vec<usize>,
    hull_reads: Vec<usize>,
}

fn add_by_hull(accesses: &mut Vec<usize>, index: usize, reach: &[Vec<bool>]) {
    accesses.retain(|other| !reach[*other][index]);
    accesses.push(index);
}

/// (from, to, whether it is a wait).
type Edges = Vec<(usize, usize, bool)>;

impl Drawn {
    fn is_loose(&self, stream: usize) -> bool {
        self.unordered && stream == STREAMS - 1
    }

    fn at(&self, (stream, seq): (usize, usize)) -> Option<usize> {
        let on = |node: &Node| matches!(node, Node::Instruction { stream: s, .. } if *s == stream);
        let mut all = self.nodes.iter().enumerate().filter(|(_, node)| on(node)).map(|(index, _)| index);
        all.nth(seq - 1)
    }

    /// What shows that two nodes are in line anyway: `None` for a node that is in line with no other.
    fn chain(&self, node: usize) -> Option<usize> {
        match &self.nodes[node] {
            Node::Instruction { stream, .. } if self.is_loose(*stream) => None,
            Node::Instruction { stream, .. } => Some(*stream),
            _ => Some(STREAMS),
        }
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let host = (0..index).rev().find(|other| !matches!(self.nodes[*other], Node::Instruction { .. }));
            edges.extend(host.map(|host| (host, index, false)));
            match node {
                Node::Instruction { waits, .. } => {
                    let chain = self.chain(index);
                    let before = (0..index).rev().find(|other| chain.is_some() && self.chain(*other) == chain);
                    edges.extend(before.map(|before| (before, index, false)));
                    let targets = waits.iter().flatten().filter_map(|point| self.at(*point));
                    edges.extend(targets.map(|target| (target, index, true)));
                }
                Node::Observed(points) => {
                    edges.extend(points.iter().filter_map(|point| self.at(*point)).map(|at| (at, index, false)));
                }
                Node::Host(_) | Node::Unmap(..) => {}
            }
        }
        edges
    }

    fn reach(&self, edges: &Edges) -> Vec<Vec<bool>> {
        let count = self.nodes.len();
        let mut reach = vec![vec![false; count]; count];
        edges.iter().for_each(|(from, to, _)| reach[*from][*to] = true);
        for middle in 0..count {
            let behind = reach[middle].clone();
            for row in reach.iter_mut().filter(|row| row[middle]) {
                row.iter_mut().zip(&behind).for_each(|(to, behind)| *to |= behind);
            }
        }
        reach
    }

    /// Every pair that must be ordered, with whether that is certain: it is not between the ends of a use that is recorded as its hull. A use
    /// by its hull stands for those before it, as `reach` says.
    fn needs(&self, reach: &[Vec<bool>]) -> BTreeMap<(usize, usize), bool> {
        let mut needs = BTreeMap::new();
        for byte in 0..BYTES {
            let mut past = Past::default();
            for (index, node) in self.nodes.iter().enumerate() {
                let (uses, unmapped) = match node {
                    Node::Instruction { uses, .. } | Node::Host(uses) => (uses.as_slice(), false),
                    Node::Unmap(start, end) => (&[][..], (*start..*end).contains(&byte)),
                    Node::Observed(_) => continue,
                };
                let mut need = |other: usize, certain: bool| {
                    if other != index {
                        *needs.entry((other, index)).or_insert(false) |= certain;
                    }
                };
                let touching = || uses.iter().filter(|u| (u.0..u.0 + u.1).contains(&byte));
                for hull in touching().filter(|u| u.2 % 3 != 1).map(|u| between_ends(u, byte)) {
                    if past.reads.last() == Some(&index) || (hull && past.hull_reads.last() == Some(&index)) {
                        continue;
                    }
                    past.write.iter().for_each(|write| need(*write, !hull));
                    past.hull_writes.iter().for_each(|write| need(*write, false));
                    if hull {
                        add_by_hull(&mut past.hull_reads, index, reach);
                    } else {
                        // Of reads in line the last stands for all.
                        past.reads
                            .retain(|other| self.chain(*other).is_none() || self.chain(*other) != self.chain(index));
                        past.reads.push(index);
                    }
                }
                for hull in touching().filter(|u| u.2 % 3 != 0).map(|u| between_ends(u, byte)) {
                    past.write.iter().chain(&past.reads).for_each(|before| need(*before, !hull));
                    past.hull_writes.iter().chain(&past.hull_reads).for_each(|before| need(*before, false));
                    match hull {
                        true => add_by_hull(&mut past.hull_writes, index, reach),
                        false => {
                            // Memory may be given back while a use by its hull runs that this write does not come after.
                            let stays = |other: &usize| *other != index && !reach[*other][index];
                            past.hull_writes.retain(stays);
                            past.hull_reads.retain(stays);
                            (past.write, past.reads) = (Some(index), Vec::new());
                        }
                    }
                }
                if unmapped {
                    let past = std::mem::take(&mut past);
                    let all = past.write.iter().chain(&past.reads).chain(&past.hull_writes).chain(&past.hull_reads);
                    all.for_each(|before| need(*before, true));
                }
            }
        }
        self.asked().into_iter().for_each(|pair| *needs.entry(pair).or_insert(true) = true);
        needs
    }

    /// From the definition, over all pairs: whether some that touch a byte for certain are in no order, and whether any are.
    fn has_races(&self, reach: &[Vec<bool>]) -> (bool, bool) {
        let (mut certain, mut any) = (false, false);
        for byte in 0..BYTES {
            // Node, whether it writes, whether it may leave the byte untouched.
            let mut seen: Vec<(usize, bool, bool)> = Vec::new();
            for (index, node) in self.nodes.iter().enumerate() {
                let uses = match node {
                    Node::Instruction { uses, .. } | Node::Host(uses) => uses.as_slice(),
                    Node::Unmap(start, end) if (*start..*end).contains(&byte) => {
                        let unordered = seen.drain(..).any(|(other, ..)| !reach[other][index]);
                        (certain, any) = (certain || unordered, any || unordered);
                        continue;
                    }
                    _ => continue,
                };
                let before = seen.len();
                for u in uses.iter().filter(|u| (u.0..u.0 + u.1).contains(&byte)) {
                    let (writes, hull) = (u.2 % 3 != 0, between_ends(u, byte));
                    let conflicts = seen[..before].iter().filter(|other| (other.1 || writes) && !reach[other.0][index]);
                    for (_, _, other_hull) in conflicts {
                        (certain, any) = (certain || !(hull || *other_hull), true);
                    }
                    seen.push((index, writes, hull));
                }
            }
        }
        (certain, any)
    }

    fn asked(&self) -> BTreeSet<(usize, usize)> {
        let mut needs = BTreeSet::new();
        let mut barrier = None;
        for (index, node) in self.nodes.iter().enumerate() {
            let Node::Instruction { asked, .. } = node else { continue };
            needs.extend(barrier.map(|barrier| (barrier, index)));
            match asked {
                Asked::Nothing => {}
                Asked::After(stream, seq) => needs.extend(self.at((*stream, *seq)).map(|at| (at, index))),
                Asked::All | Asked::Barrier => {
                    let all = (0..index).filter(|other| matches!(self.nodes[*other], Node::Instruction { .. }));
                    needs.extend(all.map(|other| (other, index)));
                }
            }
            if *asked == Asked::Barrier {
                barrier = Some(index);
            }
        }
        needs
    }

    fn index_of(&self, line: u64) -> usize {
        self.lines.iter().position(|other| *other == line).expect("the line of a node")
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let trace = Trace::read(self.text.as_bytes()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let report = verify(&trace).map_err(|error| TestCaseError::fail(error.to_string()))?;

        let all = self.edges();
        let reach = self.reach(&all);
        let closes = |edge: &&(usize, usize, bool)| edge.0 >= edge.1 && (edge.0 == edge.1 || reach[edge.1][edge.0]);
        let edges: Edges = all.iter().filter(|edge| !closes(edge)).copied().collect();
        let in_circles: BTreeSet<Vec<usize>> = (0..self.nodes.len())
            .filter(|node| reach[*node][*node])
            .map(|node| (0..self.nodes.len()).filter(|other| reach[node][*other] && reach[*other][node]).collect())
            .collect();
        prop_assert_eq!(report.cycles.total, in_circles.len() as u64);
        self.check_cycles(&report, &all)?;

        let reach = self.reach(&edges);
        self.check_closure(&trace, &reach)?;
        let needs = self.needs(&reach);
        let unordered = |wanted: bool| {
            let pairs = needs.iter().filter(|((from, to), certain)| **certain == wanted && !reach[*from][*to]);
            pairs.map(|(pair, _)| *pair).collect::<BTreeSet<_>>()
        };
        let pairs = |list: &Listed<Missing>| {
            let pair = |missing: &Missing| (self.index_of(missing.first.line), self.index_of(missing.second.line));
            list.first.iter().map(pair).collect::<BTreeSet<_>>()
        };
        let (missing, found, asked) = (unordered(true), pairs(&report.missing), self.asked());
        // A pair that was asked for, too, may be found by its hull alone.
        let undecided: BTreeSet<_> = pairs(&report.undecided).difference(&asked).copied().collect();
        prop_assert_eq!(undecided, unordered(false));
        let of_data = |pairs: &BTreeSet<_>| pairs.difference(&asked).next().is_some();
        if asked.is_empty() {
            let (certain, any) = self.has_races(&reach);
            prop_assert_eq!((of_data(&found), of_data(&found) || !report.undecided.is_empty()), (certain, any));
        }
        // What was asked of order is found with as few pairs as say the same.
        prop_assert!(found.is_subset(&missing), "found {:?}, there are {:?}", found, missing);
        let rest: BTreeSet<_> = missing.difference(&found).copied().collect();
        prop_assert!(rest.is_subset(&asked), "not found: {:?}", rest);
        prop_assert_eq!(report.missing.is_empty(), missing.is_empty());
        let needs: BTreeSet<_> = needs.into_keys().collect();
        let data: BTreeSet<_> = needs.difference(&asked).collect();
        prop_assert!(report.dependences >= data.len() as u64 && report.dependences <= needs.len() as u64);

        // Where an order that was asked is missing, a wait may be kept by a pair that only follows from it.
        self.check_excess(&report, &edges, &needs, &reach, missing.is_disjoint(&asked))
    }

    fn check_cycles(&self, report: &Report, edges: &Edges) -> Result<(), TestCaseError> {
        for cycle in &report.cycles.first {
            let nodes: Vec<usize> = cycle.places.iter().map(|place| self.index_of(place.line)).collect();
            for (place, node) in nodes.iter().enumerate() {
                let next = nodes[(place + 1) % nodes.len()];
                let waits = edges.iter().any(|(from, to, _)| (from, to) == (&next, node));
                prop_assert!(waits, "{:?} is no circle", nodes);
            }
        }
        Ok(())
    }

    fn check_closure(&self, trace: &Trace, reach: &[Vec<bool>]) -> Result<(), TestCaseError> {
        let closure = streamvm_verify::Closure::of(trace).map_err(|error| TestCaseError::fail(error.to_string()))?;
        for stream in 0..STREAMS {
            for other in 0..STREAMS {
                let points = |stream| (1..).map_while(move |seq| self.at((stream, seq)).map(|node| (seq, node)));
                for (seq, node) in points(stream) {
                    for (other_seq, other_node) in points(other) {
                        let point = |stream: usize, seq: usize| Point { stream: stream as u64, seq: seq as u64 };
                        let ordered = closure.ordered(point(stream, seq), point(other, other_seq));
                        prop_assert_eq!(ordered, Some(reach[node][other_node]));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_excess(
        &self,
        report: &Report,
        edges: &Edges,
        needs: &BTreeSet<(usize, usize)>,
        reach: &[Vec<bool>],
        exactly: bool,
    ) -> Result<(), TestCaseError> {
        let ordered: Vec<_> = needs.iter().filter(|(from, to)| reach[*from][*to]).collect();
        let mut excess = Vec::new();
        for (index, (from, to, _)) in edges.iter().enumerate().filter(|(_, edge)| edge.2) {
            let mut without = edges.clone();
            without.remove(index);
            let reach = self.reach(&without);
            if ordered.iter().all(|(from, to)| reach[*from][*to]) {
                excess.push((self.lines[*to], self.lines[*from]));
            }
        }
        let mut found: Vec<_> = report.excess.waits.first.iter().map(|wait| (wait.at.line, wait.target.line)).collect();
        excess.sort_unstable();
        found.sort_unstable();
        if exactly {
            prop_assert_eq!(found, excess);
        } else {
            prop_assert!(excess.iter().all(|wait| found.contains(wait)), "{:?} is not found in {:?}", excess, found);
        }
        prop_assert_eq!(report.excess.not_tried, 0);
        Ok(())
    }
}

fn drawn() -> ProptestConfig {
    ProptestConfig { cases: cases(500) as u32, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(drawn())]

    #[test]
    fn the_verifier_finds_what_a_naive_checker_finds(draws in prop::collection::vec(draw(), 1..24)) {
        make(&draws, false, false).check()?;
    }

    #[test]
    fn also_with_an_unordered_stream(draws in prop::collection::vec(draw(), 1..20)) {
        make(&draws, true, false).check()?;
    }

    #[test]
    fn also_with_waits_for_what_comes_later(draws in prop::collection::vec(draw(), 1..16), unordered: bool) {
        make(&draws, unordered, true).check()?;
    }
}

/// Memory is unmapped while a use by its hull may run, after a write that is in no order with that use.
#[test]
fn memory_that_ends_before_a_hull_is_told_although_a_write_comes_between() {
    let instruction = |stream, uses: &[(usize, usize, u8)]| Draw::Instruction {
        stream,
        uses: uses.to_vec(),
        waits: Vec::new(),
        order: (3, 0, 0),
    };
    let draws = [instruction(0, &[(1, 3, 3)]), Draw::Host(vec![(2, 1, 1)]), Draw::Unmap(2, 1), instruction(1, &[])];
    make(&draws, false, false).check().unwrap();
}

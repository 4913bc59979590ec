//! The graph of what comes before what, as the trace says it.
//!
//! Nodes are instructions and moments of the host, in the order of the file. A node's predecessors are the instruction
//! before it on its stream, what it waits for, and for an instruction the last moment of the host before it was
//! submitted; a moment of the host comes after the one before it and after the points seen to pass. Nodes of one ordered
//! stream form a chain, as do those of the host; an instruction on an unordered stream is a chain of its own.
//!
//! A wait by event comes after the point at which the event was last recorded, whatever the wait says of it: that is
//! what the device does. Only a wait for a point submitted later can close a cycle; the waits that do are told and left
//! out of the order, so that the rest can be judged.

use std::collections::HashMap;

use crate::report::{Cycle, Fault, FaultKind, Listed, UnusedRecord};
use crate::text::Naming;
use crate::trace::{At, Trace, What};

/// No node, wait, life.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Copy, Clone, Debug)]
pub(crate) struct Node {
    /// Index of its action.
    pub(crate) action: u32,
    pub(crate) chain: u32,
    /// Its place on its chain, from 1 on.
    pub(crate) place: u32,
}

/// One predecessor of a node.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub(crate) from: u32,
    /// The wait that makes it, an index into [`Trace::waits`]; [`NONE`] for an edge that is there anyway.
    pub(crate) wait: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) chains: usize,
    /// Whether a chain has one node only, by being one instruction of an unordered stream.
    first_single: u32,
    /// The nodes of each stream, by number - 1.
    pub(crate) by_stream: Vec<Vec<u32>>,
    edges: Vec<Edge>,
    /// The edges of node `n` are `edges[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
    /// All nodes, each after its predecessors.
    pub(crate) sorted: Vec<u32>,
    pub(crate) cycles: Listed<Cycle>,
    pub(crate) unused: Listed<UnusedRecord>,
    pub(crate) records: u64,
}

impl Graph {
    pub(crate) fn new(trace: &Trace, faults: &mut Listed<Fault>) -> Graph {
        let mut graph = Graph::default();
        graph.add_nodes(trace);
        let forward = graph.add_edges(trace, faults);
        if forward {
            graph.sort(trace);
        } else {
            graph.sorted = (0..graph.nodes.len() as u32).collect();
        }
        graph
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn predecessors(&self, node: u32) -> &[Edge] {
        &self.edges[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }

    /// Whether the chain of `node` is only that node.
    pub(crate) fn is_single(&self, node: u32) -> bool {
        self.nodes[node as usize].chain >= self.first_single
    }

    /// The instruction at a point, if it was ever submitted.
    pub(crate) fn at(&self, at: At) -> Option<u32> {
        self.by_stream[at.stream as usize].get(at.seq as usize - 1).copied()
    }

    fn add_nodes(&mut self, trace: &Trace) {
        let host = trace.streams.len() as u32;
        self.by_stream = trace.streams.iter().map(|_| Vec::new()).collect();
        (self.first_single, self.chains) = (host + 1, trace.streams.len() + 1);
        let mut host_moments = 0;
        for (index, action) in trace.actions.iter().enumerate() {
            let (chain, place) = match &action.what {
                What::Instruction(instruction) => {
                    let stream = instruction.at.stream;
                    self.by_stream[stream as usize].push(self.nodes.len() as u32);
                    if trace.streams[stream as usize].ordered {
                        (stream, instruction.at.seq)
                    } else {
                        self.chains += 1;
                        (self.chains as u32 - 1, 1)
                    }
                }
                What::Observed(_) | What::Host { .. } | What::Unmap(_) => {
                    host_moments += 1;
                    (host, host_moments)
                }
                What::Life(_) | What::Free(_) | What::Record { .. } => continue,
            };
            self.nodes.push(Node { action: index as u32, chain, place });
        }
    }

    /// Adds all edges; true if some wait names a point that comes later in the file.
    fn add_edges(&mut self, trace: &Trace, faults: &mut Listed<Fault>) -> bool {
        let naming = Naming::of(trace);
        let (mut node, mut host, mut forward) = (0, NONE, false);
        let mut events = Events::default();
        for action in &trace.actions {
            if let What::Record { event, point } = &action.what {
                self.records += 1;
                if let Some(unused) = events.record(*event, *point, action.line) {
                    self.unused.add(|| unused.told(trace));
                }
                if self.at(*point).is_none() {
                    let kind = FaultKind::RecordOfNothing { event: *event, point: trace.point(*point) };
                    faults.add(|| Fault { at: naming.line(action.line), kind });
                }
                continue;
            }
            let is_host = match &action.what {
                What::Instruction(instruction) => {
                    self.starts.push(self.edges.len() as u32);
                    let at = instruction.at;
                    if trace.streams[at.stream as usize].ordered && at.seq > 1 {
                        self.edge(self.by_stream[at.stream as usize][at.seq as usize - 2], NONE);
                    }
                    if host != NONE {
                        self.edge(host, NONE);
                    }
                    for index in instruction.waits.clone() {
                        let wait = &trace.waits[index as usize];
                        let (point, fault) = events.wait(trace, wait.point, wait.event);
                        if let Some(kind) = fault {
                            faults.add(|| Fault { at: naming.action(action), kind });
                        }
                        let Some(point) = point else { continue };
                        match self.at(point) {
                            Some(from) => {
                                forward |= from >= node;
                                self.edge(from, index);
                            }
                            None => {
                                let kind = FaultKind::WaitForNothing { point: trace.point(point) };
                                faults.add(|| Fault { at: naming.action(action), kind });
                            }
                        }
                    }
                    false
                }
                What::Observed(points) => {
                    self.starts.push(self.edges.len() as u32);
                    let passed = trace.points_of(points).iter().filter_map(|point| self.at(*point));
                    self.edges.extend(passed.map(|from| Edge { from, wait: NONE }).collect::<Vec<_>>());
                    true
                }
                What::Host { .. } | What::Unmap(_) => {
                    self.starts.push(self.edges.len() as u32);
                    true
                }
                _ => continue,
            };
            if is_host {
                if host != NONE {
                    self.edge(host, NONE);
                }
                host = node;
            }
            node += 1;
        }
        self.starts.push(self.edges.len() as u32);
        events.rest().for_each(|unused| self.unused.add(|| unused.told(trace)));
        forward
    }

    fn edge(&mut self, from: u32, wait: u32) {
        self.edges.push(Edge { from, wait });
    }

    /// Sorts the nodes so that each comes after its predecessors: strongly connected components by Tarjan's algorithm
    /// (1972), which yields a component after all that it can reach, here its predecessors. A component of several
    /// nodes, or a node before itself, is a cycle: its waits for later points are left out, and then the order of the
    /// file is right within it, as every other edge comes from further up.
    fn sort(&mut self, trace: &Trace) {
        let components = self.components();
        let mut component_of = vec![0; self.len()];
        for (number, component) in components.iter().enumerate() {
            component.iter().for_each(|node| component_of[*node as usize] = number);
        }
        let naming = Naming::of(trace);
        let mut left_out = vec![false; self.edges.len()];
        for mut component in components {
            component.sort_unstable();
            let mut closing = Vec::new();
            for &to in &component {
                for index in self.starts[to as usize]..self.starts[to as usize + 1] {
                    let from = self.edges[index as usize].from;
                    if from >= to && component_of[from as usize] == component_of[to as usize] {
                        left_out[index as usize] = true;
                        closing.push((from, to));
                    }
                }
            }
            if let Some(&(from, to)) = closing.first() {
                let nodes = self.path(from, to, &component_of);
                let places: Vec<_> = nodes.iter().map(|node| naming.node(self, *node)).collect();
                self.cycles.add(|| Cycle { places });
            }
            self.sorted.append(&mut component);
        }
        self.leave_out(&left_out);
    }

    fn leave_out(&mut self, left_out: &[bool]) {
        let mut kept = Vec::with_capacity(self.edges.len());
        let mut starts = Vec::with_capacity(self.starts.len());
        for node in 0..self.len() {
            starts.push(kept.len() as u32);
            let edges = self.starts[node] as usize..self.starts[node + 1] as usize;
            kept.extend(edges.filter(|index| !left_out[*index]).map(|index| self.edges[index]));
        }
        starts.push(kept.len() as u32);
        (self.edges, self.starts) = (kept, starts);
    }

    /// A shortest way from `from` back to `to` along predecessors within one component: with the wait of `to` for `from`
    /// it is a cycle. Each node of the result waits for the next, the last for the first.
    fn path(&self, from: u32, to: u32, component_of: &[usize]) -> Vec<u32> {
        let mut came: HashMap<u32, u32> = HashMap::from([(from, NONE)]);
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            if node == to {
                break;
            }
            for edge in self.predecessors(node) {
                if component_of[edge.from as usize] == component_of[to as usize] && !came.contains_key(&edge.from) {
                    came.insert(edge.from, node);
                    queue.push_back(edge.from);
                }
            }
        }
        let mut nodes = Vec::new();
        let mut node = to;
        while node != NONE {
            nodes.push(node);
            node = came.get(&node).copied().unwrap_or(NONE);
        }
        // So far each node is a predecessor of the next, which ends at `from`, a predecessor of `to`.
        nodes[1..].reverse();
        nodes
    }

    fn components(&self) -> Vec<Vec<u32>> {
        let mut tarjan = Tarjan {
            index: vec![NONE; self.len()],
            low: vec![NONE; self.len()],
            on_stack: vec![false; self.len()],
            ..Tarjan::default()
        };
        for root in 0..self.len() as u32 {
            if tarjan.index[root as usize] == NONE {
                tarjan.visit(self, root);
            }
        }
        tarjan.components
    }
}

#[derive(Default)]
struct Tarjan {
    next: u32,
    index: Vec<u32>,
    low: Vec<u32>,
    on_stack: Vec<bool>,
    stack: Vec<u32>,
    /// (node, how many of its edges were followed): the calls of the recursive form.
    calls: Vec<(u32, usize)>,
    components: Vec<Vec<u32>>,
}

impl Tarjan {
    fn enter(&mut self, node: u32) {
        (self.index[node as usize], self.low[node as usize]) = (self.next, self.next);
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node as usize] = true;
        self.calls.push((node, 0));
    }

    fn visit(&mut self, graph: &Graph, root: u32) {
        self.enter(root);
        while let Some((node, followed)) = self.calls.last_mut() {
            let node = *node;
            let edge = graph.predecessors(node).get(*followed).copied();
            *followed += 1;
            let Some(edge) = edge else {
                self.leave(node);
                continue;
            };
            if self.index[edge.from as usize] == NONE {
                self.enter(edge.from);
            } else if self.on_stack[edge.from as usize] {
                self.low[node as usize] = self.low[node as usize].min(self.index[edge.from as usize]);
            }
        }
    }

    fn leave(&mut self, node: u32) {
        self.calls.pop();
        if let Some((caller, _)) = self.calls.last() {
            self.low[*caller as usize] = self.low[*caller as usize].min(self.low[node as usize]);
        }
        if self.low[node as usize] != self.index[node as usize] {
            return;
        }
        let start = self.stack.iter().rposition(|other| *other == node).unwrap_or(0);
        let component = self.stack.split_off(start);
        component.iter().for_each(|member| self.on_stack[*member as usize] = false);
        self.components.push(component);
    }
}

/// What events show, as the file goes on.
#[derive(Default)]
struct Events {
    last: HashMap<u64, Recorded>,
}

struct Recorded {
    event: u64,
    point: At,
    line: u64,
    used: bool,
}

impl Recorded {
    fn told(&self, trace: &Trace) -> UnusedRecord {
        UnusedRecord {
            line: self.line,
            event: self.event,
            point: trace.point(self.point),
            stream: trace.streams[self.point.stream as usize].name.to_string(),
        }
    }
}

impl Events {
    /// An event marks a point; what it marked before, if nobody waited for it.
    fn record(&mut self, event: u64, point: At, line: u64) -> Option<Recorded> {
        let before = self.last.insert(event, Recorded { event, point, line, used: false });
        before.filter(|recorded| !recorded.used)
    }

    /// The point that a wait comes after, if it comes after any, and what is wrong with it.
    fn wait(&mut self, trace: &Trace, point: At, event: Option<u64>) -> (Option<At>, Option<FaultKind>) {
        let Some(event) = event else { return (Some(point), None) };
        let Some(recorded) = self.last.get_mut(&event) else {
            return (None, Some(FaultKind::NeverRecorded { event, point: trace.point(point) }));
        };
        recorded.used = true;
        let shown = recorded.point;
        let shows = shown.stream == point.stream
            && if trace.streams[point.stream as usize].ordered { shown.seq >= point.seq } else { shown == point };
        let fault = FaultKind::WrongEvent { event, point: trace.point(point), shows: trace.point(shown) };
        (Some(shown), (!shows).then_some(fault))
    }

    /// The records that nobody waited for, in the order of the file.
    fn rest(self) -> impl Iterator<Item = Recorded> {
        let mut rest: Vec<Recorded> = self.last.into_values().filter(|recorded| !recorded.used).collect();
        rest.sort_unstable_by_key(|recorded| recorded.line);
        rest.into_iter()
    }
}

//! The graph of the order in a trace.
//!
//! Layer: uses `trace` and `report`; is used by `checks` and by [`verify()`](crate::verify()).
//!
//! Main types: a [`Graph`] of [`Node`]s and [`Edge`]s; [`Events`] says which point each event shows as the file goes on;
//! [`Closure`](closure::Closure) answers whether one node comes before another, by vector clocks.
//!
//! Nodes are instructions and actions of the host, in the order of the file.
//! * The predecessors of an instruction are the previous instruction of its stream, the points that it waits for, and the last host
//!   action before it was submitted.
//! * The predecessors of a host action are the previous host action, and the points that the host saw pass.
//! * The nodes of one ordered stream form a chain, as do those of the host. An instruction on an unordered stream is a chain of its
//!   own.
//!
//! A wait by event comes after the point of the event's last record, whatever point the wait names, because that is what the device
//! does. Only a wait for a point that is submitted later can close a cycle: see [`cycles`].

pub(crate) mod closure;
mod cycles;
mod events;

use crate::graph::events::Events;
use crate::report::naming::Naming;
use crate::report::{Cycle, Fault, FaultKind, Listed, Place, UnusedRecord};
use crate::trace::{At, Trace, What};

/// No node, wait or life.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Copy, Clone, Debug)]
pub(crate) struct Node {
    /// The index of its action.
    pub(crate) action: u32,
    pub(crate) chain: u32,
    /// Its place on its chain, counted from 1.
    pub(crate) place: u32,
}

/// One predecessor of a node.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub(crate) from: u32,
    /// The wait that makes the edge, an index into [`Trace::waits`]; [`NONE`] for an edge without a wait.
    pub(crate) wait: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) chains: usize,
    /// The first chain of an unordered stream: this chain and all later ones have one node each.
    first_single: u32,
    /// The nodes of each stream, indexed by sequence number - 1.
    pub(crate) by_stream: Vec<Vec<u32>>,
    pub(crate) edges: Vec<Edge>,
    /// The edges of node `n` are `edges[starts[n]..starts[n + 1]]`.
    pub(crate) starts: Vec<u32>,
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

    /// Whether `node` is the only node of its chain.
    pub(crate) fn is_single(&self, node: u32) -> bool {
        self.nodes[node as usize].chain >= self.first_single
    }

    /// The instruction at a point; `None` if it was never submitted.
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

    /// Adds all edges. Returns whether a wait names a point that comes later in the file.
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
}

impl Naming<'_> {
    pub(crate) fn node(&self, graph: &Graph, node: u32) -> Place {
        self.action(&self.trace.actions[graph.nodes[node as usize].action as usize])
    }
}

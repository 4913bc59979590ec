//! Cycles: finds the waits that close a cycle, and an order of the nodes without these waits.
//!
//! Only a wait for a point that is submitted later can close a cycle. Waits that do are reported and left out of the order, so that
//! the rest of the trace can be verified.

use std::collections::{HashMap, VecDeque};

use crate::graph::{Graph, NONE};
use crate::report::Cycle;
use crate::report::naming::Naming;
use crate::trace::Trace;

impl Graph {
    /// Sorts the nodes so that each comes after its predecessors, by Tarjan's algorithm for strongly connected components (1972).
    /// It yields a component after all components that it can reach, which are its predecessors here. A component of several nodes,
    /// or a node that is its own predecessor, is a cycle. Its waits for later points are left out; then the order of the file is
    /// valid within the component, as every other edge comes from an earlier line.
    pub(crate) fn sort(&mut self, trace: &Trace) {
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

    /// A shortest path from `from` back to `to` along predecessors within one component. With the wait of `to` for `from` it is a
    /// cycle. Each node of the result waits for the next, and the last for the first.
    fn path(&self, from: u32, to: u32, component_of: &[usize]) -> Vec<u32> {
        let mut came: HashMap<u32, u32> = HashMap::from([(from, NONE)]);
        let mut queue = VecDeque::from([from]);
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
        // So far each node is a predecessor of the next one, and the last is `from`, a predecessor of `to`.
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
    /// (node, number of its edges that were followed): the call stack of the recursive form.
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

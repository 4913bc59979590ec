//! Excess waits: a wait is excess if, when it alone is removed, every dependence that was ordered stays ordered.
//!
//! A wait of `t` for `p` is checked in these steps, cheapest first:
//!
//! 1. If another predecessor of `t` is `p` or comes after it, the wait changes nothing: it is excess.
//! 2. If no other predecessor of `t` orders some dependence of `t` itself, the wait is needed. This holds for nearly all waits of a
//!    good engine.
//! 3. Otherwise the clocks that would result without the wait are followed from `t` on, only through the nodes and entries that
//!    differ. If no dependence is lost until none differs, the wait is excess; otherwise it is needed.
//!
//! Step 3 may take long, and so may steps 1 and 2 where an instruction has very many waits. The total of each is bounded; waits
//! past the bound are counted as not tried.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::checks::dependences::Needs;
use crate::graph::closure::Closure;
use crate::graph::{Edge, NONE};
use crate::report::naming::Naming;
use crate::report::{Excess, ExcessWait, Reason};
use crate::trace::{Trace, What};

/// The most clock entries that step 3 reads, over all waits of a trace: at most about five seconds.
const MOST_STEPS: u64 = 1 << 28;

/// The most predecessors that steps 1 and 2 read, over all waits of a trace: a few seconds.
const MOST_LOOKS: u64 = 1 << 30;

/// Checks every wait.
pub(crate) fn excess(trace: &Trace, closure: &Closure, needs: &Needs) -> Excess {
    excess_within(MOST_STEPS, trace, closure, needs)
}

fn excess_within(steps: u64, trace: &Trace, closure: &Closure, needs: &Needs) -> Excess {
    let mut excess = Excess::default();
    let mut search = Search { closure, needs, steps, looks: MOST_LOOKS, scratch: None };
    let naming = Naming::of(trace);
    for node in 0..closure.graph.len() as u32 {
        let edges = closure.graph.predecessors(node);
        for (index, edge) in edges.iter().enumerate().filter(|(_, edge)| edge.wait != NONE) {
            let without = Without { node, edges, index };
            let reason = match search.classify(without) {
                Verdict::Needed => continue,
                Verdict::NotTried => {
                    excess.not_tried += 1;
                    continue;
                }
                Verdict::Excess(reason) => reason,
            };
            excess.waits.add(|| ExcessWait {
                at: naming.node(&closure.graph, node),
                target: naming.node(&closure.graph, edge.from),
                by_host: trace.waits[edge.wait as usize].by_host,
                reason,
            });
        }
    }
    excess
}

/// Counts device and host waits.
pub(crate) fn count_waits(trace: &Trace) -> (u64, u64) {
    let mut counts = (0, 0);
    for action in &trace.actions {
        if let What::Instruction(instruction) = &action.what {
            for wait in trace.waits_of(&instruction.waits) {
                *(if wait.by_host { &mut counts.1 } else { &mut counts.0 }) += 1;
            }
        }
    }
    counts
}

enum Verdict {
    Needed,
    Excess(Reason),
    NotTried,
}

/// The predecessors of a node without one of them.
#[derive(Copy, Clone)]
struct Without<'a> {
    node: u32,
    edges: &'a [Edge],
    index: usize,
}

impl<'a> Without<'a> {
    fn others(self) -> impl Iterator<Item = u32> + 'a {
        self.edges.iter().enumerate().filter(move |(index, _)| *index != self.index).map(|(_, edge)| edge.from)
    }
}

/// The entries of a node's clock that would be lower: (chain, new value).
type Lower = Vec<(u32, u32)>;

/// The buffers of step 3, kept from wait to wait.
struct Scratch {
    followers: Followers,
    /// For each node, 1 + the index of its entries in `lower`; 0 for a node without.
    slot: Vec<u32>,
    /// The nodes that have a nonzero slot.
    changed: Vec<u32>,
    lower: Vec<Lower>,
    /// Nodes to visit, in sorted order; some are in it twice.
    next: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Scratch {
    fn new(closure: &Closure) -> Scratch {
        let (followers, slot) = (Followers::of(closure), vec![0; closure.graph.len()]);
        Scratch { followers, slot, changed: Vec::new(), lower: Vec::new(), next: BinaryHeap::new() }
    }

    fn clear(&mut self) {
        self.changed.drain(..).for_each(|node| self.slot[node as usize] = 0);
        self.next.clear();
    }

    /// The entries of a node that has none yet, to be filled.
    fn add(&mut self, node: u32) -> &mut Lower {
        let index = self.changed.len();
        self.changed.push(node);
        self.slot[node as usize] = index as u32 + 1;
        if index == self.lower.len() {
            self.lower.push(Lower::new());
        }
        self.lower[index].clear();
        &mut self.lower[index]
    }

    fn of(&self, node: u32) -> &[(u32, u32)] {
        match self.slot[node as usize] {
            0 => &[],
            slot => &self.lower[slot as usize - 1],
        }
    }

    fn push_followers(&mut self, node: u32) {
        self.next.extend(self.followers.of_node(node).map(Reverse));
    }
}

struct Search<'a> {
    closure: &'a Closure,
    needs: &'a Needs,
    /// The clock entries that step 3 may still read.
    steps: u64,
    /// The predecessors that steps 1 and 2 may still read.
    looks: u64,
    scratch: Option<Scratch>,
}

impl Search<'_> {
    fn classify(&mut self, without: Without<'_>) -> Verdict {
        let closure = self.closure;
        let mut looks = self.looks;
        // Whether another edge comes after a node. Returns true, perhaps wrongly, once the limit is passed; then the result is not
        // used.
        let mut comes_after = |from: u32| {
            without.others().any(|other| {
                looks = looks.saturating_sub(1);
                looks == 0 || other == from || closure.before(from, other)
            })
        };
        let implied = comes_after(without.edges[without.index].from);
        let mut needed = |from: u32| closure.before(from, without.node) && !comes_after(from);
        let needed = !implied && self.needs.at(without.node).iter().any(|need| needed(need.from));
        self.looks = looks;
        match (looks, implied, needed) {
            (0, ..) => return Verdict::NotTried,
            (_, true, _) => return Verdict::Excess(Reason::Implied),
            (_, _, true) => return Verdict::Needed,
            _ => {}
        }
        match self.follow(without) {
            Some(true) => Verdict::Needed,
            Some(false) => Verdict::Excess(Reason::NotNeeded),
            None => Verdict::NotTried,
        }
    }

    /// Whether a dependence is lost without the wait; `None` if that would take too many steps.
    fn follow(&mut self, without: Without<'_>) -> Option<bool> {
        let closure = self.closure;
        let graph = &closure.graph;
        self.spend(graph.chains * without.edges.len())?;
        let mut scratch = self.scratch.take().unwrap_or_else(|| Scratch::new(closure));
        scratch.clear();
        let own = graph.nodes[without.node as usize].chain;
        let lower = |chain: u32| {
            let value = without.others().map(|other| closure.reach(other, chain)).max().unwrap_or(0);
            (value < closure.entry(without.node, chain)).then_some((chain, value))
        };
        let first = (0..graph.chains as u32).filter(|chain| *chain != own).filter_map(lower);
        scratch.add(without.node).extend(first);
        scratch.push_followers(without.node);
        let lost = self.follow_on(&mut scratch);
        self.scratch = Some(scratch);
        lost
    }

    fn follow_on(&mut self, scratch: &mut Scratch) -> Option<bool> {
        let mut mine = Lower::new();
        let mut last = NONE;
        while let Some(Reverse((_, node))) = scratch.next.pop() {
            if node == last {
                continue;
            }
            last = node;
            self.lower_at(node, scratch, &mut mine)?;
            if mine.is_empty() {
                continue;
            }
            if self.loses(node, &mine)? {
                return Some(true);
            }
            scratch.add(node).extend_from_slice(&mine);
            scratch.push_followers(node);
        }
        Some(false)
    }

    /// Finds the entries of a node's clock that are lower because those of its predecessors are.
    fn lower_at(&mut self, node: u32, scratch: &Scratch, mine: &mut Lower) -> Option<()> {
        mine.clear();
        let graph = &self.closure.graph;
        let edges = graph.predecessors(node);
        let own = graph.nodes[node as usize].chain;
        let mut looked = edges.len();
        for changed in edges.iter().map(|edge| scratch.of(edge.from)) {
            for &(chain, _) in changed {
                looked += mine.len();
                if looked as u64 > self.steps {
                    return self.spend(looked);
                }
                if chain == own || mine.iter().any(|(known, _)| *known == chain) {
                    continue;
                }
                let before = self.closure.entry(node, chain);
                let mut value = 0;
                for edge in edges {
                    looked += 1 + scratch.of(edge.from).len();
                    let changed = scratch.of(edge.from).iter().find(|entry| entry.0 == chain);
                    value = value.max(changed.map_or_else(|| self.closure.reach(edge.from, chain), |entry| entry.1));
                    if value >= before {
                        break;
                    }
                }
                if value < before {
                    mine.push((chain, value));
                }
            }
        }
        self.spend(looked)
    }

    /// Whether a dependence of `node` was ordered and is no longer.
    fn loses(&mut self, node: u32, lower: &[(u32, u32)]) -> Option<bool> {
        let needs = self.needs.at(node);
        self.spend(needs.len() * lower.len())?;
        let nodes = &self.closure.graph.nodes;
        Some(needs.iter().any(|need| {
            let from = nodes[need.from as usize];
            let value = lower.iter().find(|(chain, _)| *chain == from.chain);
            value.is_some_and(|(_, value)| *value < from.place) && self.closure.before(need.from, node)
        }))
    }

    fn spend(&mut self, steps: usize) -> Option<()> {
        self.steps = self.steps.saturating_sub(steps as u64);
        (self.steps > 0).then_some(())
    }
}

/// The edges in the other direction, with each node's position in the sorted order.
struct Followers {
    nodes: Vec<u32>,
    starts: Vec<u32>,
    rank: Vec<u32>,
}

impl Followers {
    fn of(closure: &Closure) -> Followers {
        let graph = &closure.graph;
        let mut starts = vec![0; graph.len() + 1];
        let edges =
            || (0..graph.len() as u32).flat_map(|to| graph.predecessors(to).iter().map(move |edge| (edge.from, to)));
        edges().for_each(|(from, _)| starts[from as usize + 1] += 1);
        for node in 0..graph.len() {
            starts[node + 1] += starts[node];
        }
        let mut nodes = vec![0; starts[graph.len()] as usize];
        let mut free = starts.clone();
        for (from, to) in edges() {
            nodes[free[from as usize] as usize] = to;
            free[from as usize] += 1;
        }
        let mut rank = vec![0; graph.len()];
        graph.sorted.iter().enumerate().for_each(|(place, node)| rank[*node as usize] = place as u32);
        Followers { nodes, starts, rank }
    }

    fn of_node(&self, node: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let range = self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize;
        self.nodes[range].iter().map(|follower| (self.rank[*follower as usize], *follower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Listed;

    /// Stream 1 waits for every second instruction of stream 0, and no dependence needs the waits.
    fn trace() -> Trace {
        let mut text = String::from("{\"streamvm_trace\":1}\n");
        (0..2).for_each(|id| text.push_str(&format!("{{\"stream\":{{\"id\":{id},\"name\":\"s{id}\"}}}}\n")));
        for seq in 1..40 {
            let wait = if seq % 2 == 0 { format!("{{\"point\":[0,{seq}],\"by\":\"host\"}}") } else { String::new() };
            let line = |stream: u32, waits: &str| {
                format!(
                    "{{\"instruction\":{{\"at\":[{stream},{seq}],\"op\":\"o\",\"location\":\"s\",\"waits\":[{waits}]}}}}\n"
                )
            };
            text.push_str(&line(0, ""));
            text.push_str(&line(1, &wait));
        }
        Trace::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_not_tried_is_counted_and_not_claimed() {
        let trace = trace();
        let closure = Closure::of(&trace).unwrap();
        let needs = Needs::of(&trace, &closure, &mut Listed::default()).unwrap();
        let all = excess_within(MOST_STEPS, &trace, &closure, &needs);
        assert_eq!((all.waits.total, all.not_tried), (19, 0));
        assert!(all.waits.first.iter().all(|wait| wait.reason == Reason::NotNeeded && wait.by_host));
        let some = excess_within(200, &trace, &closure, &needs);
        assert!(some.waits.total > 0 && some.not_tried > 0, "{some:?}");
        assert_eq!(some.waits.total + some.not_tried, 19);
    }
}

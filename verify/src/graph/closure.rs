//! Happens-before: which instructions come before which.
//!
//! The closure has vector clocks (Fidge 1988, Mattern 1989) over the chains of the graph. For each chain, the clock of a node has
//! the highest place on that chain that comes before the node. The clocks are computed once, from the edges alone; they use no rule
//! of the engine's own clocks, such as what these forget or drop.
//!
//! A node shares the clock of the previous node of its chain, unless one of its predecessors adds to that clock. The entry of a
//! clock for the node's own chain has no meaning, as the chain itself is ordered.

use std::fmt;

use crate::graph::Graph;
use crate::trace::{At, Point, Trace};

/// The most clock entries: 1 GiB. That allows 262,144 different clocks for a trace of 1024 streams.
const MOST_ENTRIES: usize = 1 << 28;

/// The most clock entries that are merged: a few seconds. That allows 16 million waits for a trace of 1024 streams.
const MOST_MERGED: u64 = 1 << 34;

/// The trace is too large to be verified.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooLarge {
    /// Its clocks would need too much memory.
    #[error(
        "the trace has {chains} streams (each instruction of an unordered stream counts as one) and too many waits between \
         them: the clocks would have more than {entries} entries; record a shorter run"
    )]
    Clocks {
        /// The number of streams, each instruction of an unordered stream counted as one.
        chains: usize,
        /// The most clock entries that are allowed.
        entries: usize,
    },
    /// Merging its clocks would take too long.
    #[error(
        "the trace has {chains} streams (each instruction of an unordered stream counts as one) and too many waits between \
         them: merging the clocks would take too long; record a shorter run"
    )]
    Waits {
        /// The number of streams, each instruction of an unordered stream counted as one.
        chains: usize,
    },
    /// Finding its dependences would need too much memory or time.
    #[error(
        "up to line {line} the trace has too many dependences, or too many readers of too many pieces of memory; record a \
         shorter run"
    )]
    Dependences {
        /// The line at which the limit was passed.
        line: u64,
    },
}

/// As `Display`, so that the message is a sentence also where `main` returns the error.
impl fmt::Debug for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The happens-before relation of a trace. See [`Closure::of`].
#[derive(Debug)]
pub struct Closure {
    pub(crate) graph: Graph,
    /// Clocks, `graph.chains` entries each.
    clocks: Vec<u32>,
    /// The clock of each node.
    clock_of: Vec<u32>,
    /// The streams' ids, by index.
    streams: Vec<u64>,
}

impl Closure {
    /// Computes the order of a trace: the order of each stream, the waits, and the points that the host saw pass.
    ///
    /// # Errors
    /// The trace has too many streams for its number of waits.
    pub fn of(trace: &Trace) -> Result<Closure, TooLarge> {
        let mut faults = crate::report::Listed::default();
        Closure::over(Graph::new(trace, &mut faults), trace)
    }

    pub(crate) fn over(graph: Graph, trace: &Trace) -> Result<Closure, TooLarge> {
        Closure::within(MOST_ENTRIES, MOST_MERGED, graph, trace)
    }

    fn within(entries: usize, merged: u64, graph: Graph, trace: &Trace) -> Result<Closure, TooLarge> {
        let chains = graph.chains;
        let streams = trace.streams.iter().map(|stream| stream.id).collect();
        // Clock 0 belongs to nodes that no other node comes before.
        let mut closure = Closure { clock_of: vec![0; graph.len()], clocks: vec![0; chains], graph, streams };
        let mut left = merged;
        for index in 0..closure.graph.len() {
            let node = closure.graph.sorted[index];
            closure.clock_of[node as usize] = closure.join(node, entries, &mut left)?;
        }
        Ok(closure)
    }

    /// Returns the clock of a node. Its predecessors must have theirs.
    fn join(&mut self, node: u32, entries: usize, left: &mut u64) -> Result<u32, TooLarge> {
        let Closure { graph, clocks, clock_of, .. } = self;
        let (width, own) = (graph.chains, graph.nodes[node as usize].chain);
        let before = graph.predecessors(node).iter().find(|edge| graph.nodes[edge.from as usize].chain == own);
        let base = before.map_or(0, |edge| clock_of[edge.from as usize]);
        let mut mine = base;
        for edge in graph.predecessors(node) {
            let from = graph.nodes[edge.from as usize];
            if from.chain == own || clocks[mine as usize * width + from.chain as usize] >= from.place {
                continue;
            }
            if mine == base {
                if clocks.len() + width > entries {
                    return Err(TooLarge::Clocks { chains: width, entries });
                }
                mine = (clocks.len() / width) as u32;
                clocks.extend_from_within(base as usize * width..(base as usize + 1) * width);
            }
            let (all, target) = clocks.split_at_mut(mine as usize * width);
            let source = clock_of[edge.from as usize] as usize;
            // Clock 0 has no entry to merge.
            if source != 0 {
                *left = left.checked_sub(width as u64).ok_or(TooLarge::Waits { chains: width })?;
                for (entry, other) in target.iter_mut().zip(&all[source * width..][..width]) {
                    *entry = (*entry).max(*other);
                }
            }
            let entry = &mut target[from.chain as usize];
            *entry = (*entry).max(from.place);
        }
        Ok(mine)
    }

    /// The highest place on `chain` that comes before `node`, or is `node` itself.
    pub(crate) fn reach(&self, node: u32, chain: u32) -> u32 {
        let at = &self.graph.nodes[node as usize];
        if at.chain == chain { at.place } else { self.entry(node, chain) }
    }

    /// The highest place on another chain that comes before `node`.
    pub(crate) fn entry(&self, node: u32, chain: u32) -> u32 {
        self.clocks[self.clock_of[node as usize] as usize * self.graph.chains + chain as usize]
    }

    /// Whether `first` comes before `second`.
    pub(crate) fn before(&self, first: u32, second: u32) -> bool {
        let (a, b) = (&self.graph.nodes[first as usize], &self.graph.nodes[second as usize]);
        if a.chain == b.chain { a.place < b.place } else { self.entry(second, a.chain) >= a.place }
    }

    /// Whether the instruction at `first` has passed before the one at `second` starts. `None` if either was not submitted.
    pub fn ordered(&self, first: Point, second: Point) -> Option<bool> {
        Some(self.before(self.node(first)?, self.node(second)?))
    }

    fn node(&self, point: Point) -> Option<u32> {
        let stream = self.streams.iter().position(|id| *id == point.stream)? as u32;
        let seq = u32::try_from(point.seq).ok().filter(|seq| *seq > 0)?;
        self.graph.at(At { stream, seq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_past_the_limit_are_refused() {
        let mut text =
            String::from("{\"streamvm_trace\":1}\n{\"stream\":{\"id\":0,\"name\":\"u\",\"ordered\":false}}\n");
        for seq in 1..=10 {
            let waits = if seq > 1 { format!("{{\"point\":[0,{}],\"by\":\"host\"}}", seq - 1) } else { String::new() };
            text.push_str(&format!(
                "{{\"instruction\":{{\"at\":[0,{seq}],\"op\":\"o\",\"location\":\"s\",\"waits\":[{waits}]}}}}\n"
            ));
        }
        let trace = Trace::read(text.as_bytes()).unwrap();
        let graph = || Graph::new(&trace, &mut crate::report::Listed::default());
        // Chains: one for the stream, one for the host, one for each instruction. Clocks: one for each instruction that waits, and
        // clock 0.
        assert!(Closure::within(12 * 10, MOST_MERGED, graph(), &trace).is_ok());
        let error = Closure::within(12 * 10 - 1, MOST_MERGED, graph(), &trace).unwrap_err();
        assert!(matches!(error, TooLarge::Clocks { chains: 12, entries: 119 }), "{error:?}");
        // Each waiting instruction but the first merges the clock of its predecessor: eight merges.
        assert!(Closure::within(12 * 10, 12 * 8, graph(), &trace).is_ok());
        let error = Closure::within(12 * 10, 12 * 8 - 1, graph(), &trace).unwrap_err();
        assert_eq!(error, TooLarge::Waits { chains: 12 });
        assert!(error.to_string().contains("record a shorter run"), "{error}");
    }
}

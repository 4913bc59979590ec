//! Happens-before: which instructions come before which.
//!
//! Vector clocks (Fidge 1988, Mattern 1989) over the chains of the graph: a node's clock says, for each chain, up to which
//! place it comes before the node. They are computed once, from the edges alone; no rule of the engine's own clocks
//! (what it forgets, what it may drop) is used here.
//!
//! A node that nothing new comes before shares the clock of the one before it on its chain. A clock's entry for the
//! node's own chain means nothing: the chain's order says it.

use std::fmt;

use crate::graph::Graph;
use crate::trace::{At, Point, Trace};

/// The most clock entries: 1 GiB. A trace of 1024 streams has room for 262,144 different clocks.
const MOST_ENTRIES: usize = 1 << 28;

/// The most clock entries that are merged: a few seconds. A trace of 1024 streams may wait 16 million times.
const MOST_MERGED: u64 = 1 << 34;

/// A trace is too large to be judged.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooLarge {
    /// Its clocks would take too much memory.
    #[error(
        "the trace has {chains} streams (each instruction of an unordered stream counts as one) and too many waits between \
         them: the clocks would have more than {entries} entries; record a shorter run"
    )]
    Clocks {
        /// Streams, with each instruction of an unordered one.
        chains: usize,
        /// The most entries.
        entries: usize,
    },
    /// Its clocks would take too much time.
    #[error(
        "the trace has {chains} streams (each instruction of an unordered stream counts as one) and too many waits between \
         them: merging the clocks would take too long; record a shorter run"
    )]
    Waits {
        /// Streams, with each instruction of an unordered one.
        chains: usize,
    },
    /// Its dependences would take too much memory or time.
    #[error(
        "up to line {line} the trace has too many dependences, or too many readers of too many pieces of memory; record a \
         shorter run"
    )]
    Dependences {
        /// The line that was one too many.
        line: u64,
    },
}

/// What `Display` says: a sentence, also where a program's `main` returns it.
impl fmt::Debug for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What comes before what in a trace. See [`Closure::of`].
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
    /// Computes the order of a trace: of each stream, of the waits, and of what the host has seen.
    ///
    /// # Errors
    /// There are too many streams for so many waits.
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
        // Clock 0 is that of a node that nothing comes before.
        let mut closure = Closure { clock_of: vec![0; graph.len()], clocks: vec![0; chains], graph, streams };
        let mut left = merged;
        for index in 0..closure.graph.len() {
            let node = closure.graph.sorted[index];
            closure.clock_of[node as usize] = closure.join(node, entries, &mut left)?;
        }
        Ok(closure)
    }

    /// The clock of a node whose predecessors have theirs.
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
            // Clock 0 says nothing.
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

    /// Up to which place of `chain` everything comes before `node`, or is it.
    pub(crate) fn reach(&self, node: u32, chain: u32) -> u32 {
        let at = &self.graph.nodes[node as usize];
        if at.chain == chain { at.place } else { self.entry(node, chain) }
    }

    /// Up to which place of another chain everything comes before `node`.
    pub(crate) fn entry(&self, node: u32, chain: u32) -> u32 {
        self.clocks[self.clock_of[node as usize] as usize * self.graph.chains + chain as usize]
    }

    /// Whether `first` comes before `second`.
    pub(crate) fn before(&self, first: u32, second: u32) -> bool {
        let (a, b) = (&self.graph.nodes[first as usize], &self.graph.nodes[second as usize]);
        if a.chain == b.chain { a.place < b.place } else { self.entry(second, a.chain) >= a.place }
    }

    /// Whether the instruction at `first` is over before the one at `second` starts. `None` if one of the two was not
    /// submitted.
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
                "{{\"instruction\":{{\"at\":[0,{seq}],\"op\":\"o\",\"site\":\"s\",\"waits\":[{waits}]}}}}\n"
            ));
        }
        let trace = Trace::read(text.as_bytes()).unwrap();
        let graph = || Graph::new(&trace, &mut crate::report::Listed::default());
        // One chain for the stream, one for the host, one for each instruction; a clock for each that waits, and one
        // more.
        assert!(Closure::within(12 * 10, MOST_MERGED, graph(), &trace).is_ok());
        let error = Closure::within(12 * 10 - 1, MOST_MERGED, graph(), &trace).unwrap_err();
        assert!(matches!(error, TooLarge::Clocks { chains: 12, entries: 119 }), "{error:?}");
        // The clock of the first one that waits is merged by the next one, and so on: eight times.
        assert!(Closure::within(12 * 10, 12 * 8, graph(), &trace).is_ok());
        let error = Closure::within(12 * 10, 12 * 8 - 1, graph(), &trace).unwrap_err();
        assert_eq!(error, TooLarge::Waits { chains: 12 });
        assert!(error.to_string().contains("record a shorter run"), "{error}");
    }
}

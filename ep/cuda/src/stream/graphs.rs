//! The graphs of one stream: which commands it has captured, over which buffers, and when it captures.
//!
//! A graph has the addresses of its captured commands, so it belongs to the buffers that they were captured over. A caching allocator
//! gives the runs of a program the same blocks again and again. So the stream keeps up to [`MOST_RUNS`] graphs of the same commands, found
//! by their buffers, and by the sizes of tensors where a program has bounded ones:
//!
//! * When a run uses buffers that are new here, the stream notes them, and the commands are queued one by one. So commands over memory that is
//!   used only once cost nothing more, and the driver has loaded all kernels before the first capture.
//! * When a later run uses the same buffers, the commands are captured. If the buffers of an older graph were forgotten meanwhile, the older
//!   graph is updated to the new addresses; otherwise a new graph is made.
//! * From then on, the graph is launched.
//!
//! A loop with all blocks in it is announced in each of its rounds until it is launched, so its second round captures it. Branches are announced once in a run,
//! as other commands are. A graph with blocks is never updated.
//!
//! Commands whose capture or launch was refused once are queued one by one from then on. Where a capture only lacks memory of the device, it is tried again
//! later: after one announcement, then after two, four and so on.
//!
//! This module decides and owns handles; the stream makes the driver calls (`stream/capture.rs`). A stream is used by one thread at a time, so
//! nothing here is locked, and no two streams share a graph. The driver guarantees what makes this simple: an update leaves earlier
//! launches as they are, and a graph that is destroyed while it runs goes once it has completed. Graphs with blocks are waited for instead.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use streamvm_ep::{GraphKey, Operand};

use crate::driver::{GraphExecHandle, GraphHandle};

/// For how many sets of buffers a stream knows the same commands. A program with a few runs in flight uses as many sets in turn.
const MOST_RUNS: usize = 6;

/// The most announcements that are queued until a capture that lacked memory is tried again. A try costs a few times what an announcement of a few
/// commands costs, so after so many it is lost among them.
const LONGEST_WAIT: u32 = 1024;

/// A buffer of a run: commands of its graph access no other bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Buffer {
    address: usize,
    bytes: usize,
    written: bool,
}

impl Buffer {
    /// The memory of an operand, from its first byte to its last. Of one with gaps, the commands of a graph use the elements alone: the sequence has
    /// checked that.
    pub(crate) fn of(operand: &Operand) -> Buffer {
        let bytes = bytes_of(operand);
        Buffer { address: bytes.start, bytes: bytes.len(), written: operand.access().writes() }
    }

    /// Whether the operand accesses these bytes only, and only as declared.
    pub(crate) fn covers(&self, operand: &Operand) -> bool {
        let bytes = bytes_of(operand);
        let end = self.address.saturating_add(self.bytes);
        let inside = bytes.is_empty() || (self.address <= bytes.start && bytes.end <= end);
        inside && (self.written || !operand.access().writes())
    }
}

/// The addresses from the first to the last byte of an operand. Its pointer includes the offset of its layout, which is its first element.
fn bytes_of(operand: &Operand) -> Range<usize> {
    let address = operand.ptr().addr();
    address..address.saturating_add(operand.layout().span_elements().len().saturating_mul(operand.dtype().size()))
}

/// The buffers of one run.
pub(crate) type RunBuffers = SmallVec<[Buffer; 8]>;

/// The driver's handles of a graph.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct GraphHandles {
    pub(crate) exec: GraphExecHandle,
    /// The graph that it was made of, if that must live as long: one with blocks, because nothing says that its conditions outlive it.
    pub(crate) source: Option<GraphHandle>,
}

/// A graph that can be launched.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Graph {
    pub(crate) handle: GraphHandles,
    /// The matrix products in it.
    pub(crate) products: CapturedProducts,
}

/// The number of matrix products that were captured, by implementation.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct CapturedProducts {
    pub(crate) cublas: u64,
    pub(crate) own: u64,
}

/// The answer of [`KeptGraphs::find`] to announced commands.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Launch this graph.
    Graph(Graph),
    /// Capture them.
    Capture,
    /// Queue them one by one.
    Queue,
}

/// The address of what sequences share, then the number of the first command. A [`Commands`] keeps that memory, so no other sequence has the address.
type Key = (usize, usize);

/// A known run of some commands, with their graph once they were captured.
#[derive(Debug)]
struct Run {
    /// [`GraphOwner::sizes`](streamvm_ep::GraphOwner::sizes).
    sizes: u64,
    buffers: RunBuffers,
    graph: Option<Graph>,
}

/// Commands that were announced.
#[derive(Debug)]
struct Commands {
    sequence: Weak<()>,
    /// Whether they are never captured again.
    refused: bool,
    /// How many announcements are still queued before the next capture, because the last one lacked memory.
    wait: u32,
    /// The number of them if the next one lacks memory, too.
    next_wait: u32,
    /// The last used at the end.
    runs: Vec<Run>,
    /// Graphs whose buffers were forgotten.
    spare: Vec<GraphHandles>,
}

impl Commands {
    fn take_graphs(&mut self) -> impl Iterator<Item = GraphHandles> {
        self.runs.drain(..).filter_map(|run| run.graph).map(|graph| graph.handle).chain(self.spare.drain(..))
    }
}

/// Commands of sequences that are gone are looked for whenever commands are added, as long as there are no more than this.
const FEW: usize = 64;

/// The graphs of one stream.
#[derive(Debug, Default)]
pub(crate) struct KeptGraphs {
    commands: HashMap<Key, Commands>,
    /// How many commands there may be before those of sequences that are gone are looked for: twice as many as were left the last time. So the time of all
    /// these searches together is in proportion to the commands.
    limit: usize,
    /// To be destroyed.
    unused: Vec<GraphHandles>,
}

fn key(of: GraphKey<'_>) -> Key {
    (Arc::as_ptr(&of.owner.sequence).addr(), of.first)
}

impl KeptGraphs {
    /// Tells whether commands over these buffers are queued, captured, or launched as a graph that there is. Notes that the buffers were used.
    pub(crate) fn find(&mut self, of: GraphKey<'_>, buffers: &RunBuffers) -> Found {
        if !self.commands.contains_key(&key(of)) {
            self.add(of);
        }
        let Some(commands) = self.commands.get_mut(&key(of)) else { return Found::Queue };
        if commands.refused {
            return Found::Queue;
        }
        let known = commands.runs.iter().rposition(|run| run.sizes == of.owner.sizes && run.buffers == *buffers);
        let Some(known) = known else {
            if commands.runs.len() == MOST_RUNS {
                commands.spare.extend(commands.runs.remove(0).graph.map(|graph| graph.handle));
            }
            commands.runs.push(Run { sizes: of.owner.sizes, buffers: buffers.clone(), graph: None });
            return Found::Queue;
        };
        let run = commands.runs.remove(known);
        let found = match run.graph {
            Some(graph) => Found::Graph(graph),
            None if commands.wait > 0 => {
                commands.wait -= 1;
                Found::Queue
            }
            None => Found::Capture,
        };
        commands.runs.push(run);
        found
    }

    /// A graph of the same commands that may be updated to other addresses.
    pub(crate) fn take_spare(&mut self, of: GraphKey<'_>) -> Option<GraphHandles> {
        self.commands.get_mut(&key(of))?.spare.pop()
    }

    /// Keeps the graph of commands over the buffers of the last [`find`](KeptGraphs::find).
    pub(crate) fn keep(&mut self, of: GraphKey<'_>, graph: Graph) {
        match self.commands.get_mut(&key(of)).and_then(|commands| commands.runs.last_mut()) {
            Some(run) => self.unused.extend(run.graph.replace(graph).map(|old| old.handle)),
            None => self.unused.push(graph.handle),
        }
    }

    /// Does not capture or launch these commands from now on.
    pub(crate) fn refuse(&mut self, of: GraphKey<'_>) {
        if let Some(commands) = self.commands.get_mut(&key(of)) {
            commands.refused = true;
            self.unused.extend(commands.take_graphs());
        }
    }

    /// Captures these commands later, because memory was missing now.
    pub(crate) fn put_off(&mut self, of: GraphKey<'_>) {
        if let Some(commands) = self.commands.get_mut(&key(of)) {
            commands.wait = commands.next_wait;
            commands.next_wait = (2 * commands.next_wait).min(LONGEST_WAIT);
        }
    }

    /// Adds a graph that is to be destroyed.
    pub(crate) fn discard(&mut self, graph: GraphHandles) {
        self.unused.push(graph);
    }

    /// The graphs that are to be destroyed; the caller does that.
    pub(crate) fn take_unused(&mut self) -> Vec<GraphHandles> {
        std::mem::take(&mut self.unused)
    }

    /// All graphs, which the caller destroys.
    pub(crate) fn take_all(&mut self) -> Vec<GraphHandles> {
        let KeptGraphs { commands, unused, .. } = std::mem::take(self);
        unused
            .into_iter()
            .chain(commands.into_values().flat_map(|mut of| of.take_graphs().collect::<Vec<_>>()))
            .collect()
    }

    /// Adds commands, and now and then drops those of sequences that are gone.
    fn add(&mut self, of: GraphKey<'_>) {
        let KeptGraphs { commands, limit, unused } = self;
        if commands.len() >= *limit {
            commands.retain(|_, commands| {
                let alive = commands.sequence.strong_count() > 0;
                if !alive {
                    unused.extend(commands.take_graphs());
                }
                alive
            });
            *limit = if commands.len() < FEW { 0 } else { 2 * commands.len() };
        }
        let sequence = Arc::downgrade(&of.owner.sequence);
        let (runs, spare) = (Vec::new(), Vec::new());
        commands.insert(key(of), Commands { sequence, refused: false, wait: 0, next_wait: 1, runs, spare });
    }
}

#[cfg(test)]
mod tests {
    use streamvm_ep::GraphOwner;

    use super::*;

    /// Thousands of stretches of one program: the stream does not look through all of them at each new one. Those of programs that are gone do not stay.
    #[test]
    fn commands_that_are_gone_are_looked_for_now_and_then() {
        let mut graphs = KeptGraphs::default();
        let no_buffers = RunBuffers::new();
        let announce = |graphs: &mut KeptGraphs, owner: &GraphOwner, firsts: Range<usize>| {
            let mut searches = 0;
            for first in firsts {
                let limit = graphs.limit;
                assert_eq!(graphs.find(GraphKey { owner, first }, &no_buffers), Found::Queue);
                searches += usize::from(graphs.limit != limit);
            }
            searches
        };
        let (large, other) = (GraphOwner::default(), GraphOwner::default());
        let searches = announce(&mut graphs, &large, 0..10_000);
        assert!((1..12).contains(&searches), "{searches} searches");
        drop(large);
        announce(&mut graphs, &other, 0..10_000);
        assert_eq!(graphs.commands.len(), 10_000);
        // Of few commands, those that are gone go at the next new one.
        let mut graphs = KeptGraphs::default();
        let few = GraphOwner::default();
        announce(&mut graphs, &few, 0..FEW - 1);
        drop(few);
        announce(&mut graphs, &other, 0..1);
        assert_eq!(graphs.commands.len(), 1);
    }
}

//! Commands that each run of a sequence queues again, which a device may keep as a graph and launch by one call.

use std::sync::Arc;

/// The owner of graphs: one sequence, or all sequences that a program with bounded sizes makes of one segment. A stream drops the graphs some time after the
/// last reference to `sequence` was dropped.
#[derive(Clone, Debug, Default)]
pub struct GraphOwner {
    /// Shared by sequences of the same commands over tensors of other sizes: a stream may update a graph of one to the parameters of another.
    pub sequence: Arc<()>,
    /// Tells these apart.
    pub sizes: u64,
}

/// Names commands that are the same in each run over the same buffers.
#[derive(Copy, Clone, Debug)]
pub struct GraphKey<'a> {
    /// The owner of the graph, which the sequence that queues the commands keeps alive.
    pub owner: &'a GraphOwner,
    /// The number of the first of the commands in the sequence; of commands with blocks, that of the step which begins the first block.
    pub first: usize,
}

/// How many streams the blocks of announced commands need for their captures, and where their loops begin to count.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct GraphBlocks {
    /// How deep blocks are nested; at least 1.
    pub depth: usize,
    /// The rounds that loops of the run have made before; `None` if no block is a loop.
    pub rounds: Option<u64>,
}

/// How a block of captured commands begins.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BlockStart {
    /// The commands run if the condition is true.
    If {
        /// Whether further commands run if it is false.
        has_else: bool,
    },
    /// The commands run again as long as the condition is true.
    While {
        /// The loops of a run end early if they would make more rounds together.
        most_rounds: u64,
        /// The step, for [`LoopEnd`].
        step: u32,
    },
}

/// How the loops of a graph have run.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct LoopsRun {
    /// The rounds that loops of the run have made so far, those before the graph included.
    pub rounds: u64,
    /// Whether a loop has ended although its condition was true.
    pub end: Option<LoopEnd>,
}

/// Why a loop has ended although its condition was true.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LoopEnd {
    /// The loops of the run would have made too many rounds.
    MostRounds {
        /// The step that begins the loop.
        step: u32,
    },
    /// [`Device::stop_loops`](crate::Device::stop_loops) was called.
    Stopped {
        /// The step that begins the loop.
        step: u32,
    },
}

/// The answer of a stream to [`Graphs::begin_graph`](crate::Graphs::begin_graph).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum GraphStart {
    /// The stream has launched a graph of them: they must not be queued.
    Launched,
    /// The stream captures the commands that are queued from now on, until `end_graph`.
    Capturing,
    /// They are queued one by one.
    Queue,
}

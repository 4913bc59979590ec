//! Commands that each run of a sequence queues again, which a device may keep as a graph and launch by one call.

use std::sync::Arc;

/// Names commands that are the same in each run over the same buffers.
#[derive(Copy, Clone, Debug)]
pub struct GraphKey<'a> {
    /// The sequence that queues the commands. A stream drops the graphs of a sequence some time after the sequence, which alone keeps this
    /// alive.
    pub sequence: &'a Arc<()>,
    /// The number of the first of the commands in the sequence.
    pub first: usize,
}

/// The answer of a stream to [`Stream::begin_graph`](crate::Stream::begin_graph).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum GraphStart {
    /// The stream has launched a graph of them: they must not be queued.
    Launched,
    /// The stream captures the commands that are queued from now on, until `end_graph`.
    Capturing,
    /// They are queued one by one.
    Queue,
}

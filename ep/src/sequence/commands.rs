//! What a [`CommandSequence`](crate::CommandSequence) needs of the stream on which it queues commands.

use std::sync::Arc;

use crate::call::kernel::KernelCall;
use crate::call::label::{Label, ProgramStep};
use crate::call::operand::Operand;
use crate::call::step_note::StepNote;
use crate::errors::error::Error;
use crate::names::event_id::EventId;
use crate::sequence::fused_group::FusedKernel;
use crate::sequence::graph::{BlockStart, GraphBlocks, GraphKey, GraphStart, LoopsRun};
use crate::tensor::scalar::Scalar;

/// A device's stream, as far as the steps of a program need it.
pub trait Commands {
    /// Sets the step that the next command belongs to; see [`Stream::begin_step`](crate::Stream::begin_step).
    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]);

    /// Runs a kernel.
    ///
    /// # Errors
    /// Those of [`Stream::launch`](crate::Stream::launch).
    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error>;

    /// Copies `source` to `target`.
    ///
    /// # Errors
    /// Those of [`Stream::copy`](crate::Stream::copy).
    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error>;

    /// Writes `value` to every element of `target`.
    ///
    /// # Errors
    /// Those of [`Stream::fill`](crate::Stream::fill).
    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error>;

    /// The label of the instruction that its commands belong to; see [`Stream::label`](crate::Stream::label).
    fn label(&self) -> Option<Label> {
        None
    }

    /// Blocks until every command so far has completed; see [`Stream::synchronize`](crate::Stream::synchronize).
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`](crate::Stream::synchronize).
    fn synchronize(&mut self) -> Result<(), Error>;

    /// Holds back later commands; see [`Stream::wait`](crate::Stream::wait).
    ///
    /// # Errors
    /// Those of [`Stream::wait`](crate::Stream::wait).
    fn wait(&mut self, event: EventId) -> Result<(), Error>;

    /// Where the stream notes the step that the host runs; see [`Stream::step_note`](crate::Stream::step_note).
    fn step_note(&self) -> Option<Arc<StepNote>> {
        None
    }

    /// Reports what the host uses between two commands; see [`Stream::host_uses`](crate::Stream::host_uses).
    fn host_uses(&mut self, _what: &'static str, _operands: &[Operand<'static>]) {}

    /// See [`Stream::after_host_code`](crate::Stream::after_host_code).
    fn after_host_code(&mut self) {}

    /// The stream, if it can do more with several commands than queue them one by one.
    fn graphs(&mut self) -> Option<&mut dyn Graphs>;
}

/// A stream that launches several commands by one call, runs them on lanes side by side, and has kernels that compute several steps.
pub trait Graphs: Commands {
    /// Computes the steps of a group by the kernel that its device has made of it, over the views of the group in their order. Returns `false`, and has
    /// queued nothing, if the stream has no such kernel any longer: then the caller queues the steps one by one.
    ///
    /// # Errors
    ///
    /// [`Error::FusedViews`] if the views are not those of the group: their number, the size of their elements, their shape or their accesses differ,
    /// one is misaligned, or one that is written overlaps another one. Errors of the driver.
    fn launch_fused(&mut self, kernel: &FusedKernel, views: &mut [Operand<'static>]) -> Result<bool, Error>;

    /// Announces the commands that the caller would queue next: whenever it gives this key with buffers at these addresses, they are the
    /// same commands, and their operands lie within the buffers.
    ///
    /// After [`GraphStart::Capturing`] the caller makes no other calls than those of [`Commands`], [`launch_fused`](Graphs::launch_fused) and those of lanes
    /// ([`begin_lanes`](Graphs::begin_lanes) to [`end_lanes`](Graphs::end_lanes)), from the same thread, until
    /// [`end_graph`](Graphs::end_graph), which it always calls. At any other call the stream gives the capture up, and none of its commands runs.
    ///
    /// # Errors
    ///
    /// The device is lost. Otherwise a graph that cannot be launched or captured is not an error: the stream returns
    /// [`GraphStart::Queue`].
    fn begin_graph(&mut self, key: GraphKey<'_>, buffers: &[Operand<'static>]) -> Result<GraphStart, Error>;

    /// As [`begin_graph`](Graphs::begin_graph), for commands of which some run only if a condition in memory of the device is true, or as long as it is
    /// ([`begin_block`](Graphs::begin_block) to [`end_block`](Graphs::end_block)). The stream launches all of them by one call, and the device decides. If a
    /// block is a loop, the caller asks [`loops_run`](Graphs::loops_run) once they have run, and before it announces other commands with loops.
    ///
    /// After [`GraphStart::Capturing`] the caller may make these calls, too, and none for lanes; it begins a loop only if it has announced one
    /// ([`GraphBlocks::rounds`]). The first launch on a stream may wait for the device.
    ///
    /// # Errors
    ///
    /// As for [`begin_graph`](Graphs::begin_graph).
    fn begin_block_graph(
        &mut self,
        key: GraphKey<'_>,
        buffers: &[Operand<'static>],
        blocks: GraphBlocks,
    ) -> Result<GraphStart, Error>;

    /// Begins a block of captured commands. `condition` is one bool, which is read where the block begins, and at the end of each round of a loop.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then the capture gives no graph.
    fn begin_block(&mut self, start: BlockStart, condition: &Operand<'static>) -> Result<(), Error>;

    /// Ends the commands of an `if` whose condition is true, and begins those for the other case.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then the capture gives no graph.
    fn begin_else(&mut self) -> Result<(), Error>;

    /// Ends the innermost block of captured commands.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then the capture gives no graph.
    fn end_block(&mut self) -> Result<(), Error>;

    /// How the loops of the last graph with loops have run. The caller has waited for the graph.
    fn loops_run(&mut self) -> LoopsRun;

    /// Ends the capture that [`begin_graph`](Graphs::begin_graph) or [`begin_block_graph`](Graphs::begin_block_graph) began. If the commands are `whole`, makes
    /// a graph of them, keeps it and launches it. Returns whether it was launched; if it was not, none of the commands was queued, and the caller queues
    /// them one by one.
    ///
    /// # Errors
    ///
    /// The device is lost.
    fn end_graph(&mut self, whole: bool) -> Result<bool, Error>;

    /// Begins commands on `lanes` lanes, which the device may run side by side: lane 0 is this stream, and the others are side streams of it. Commands
    /// are queued on lane 0 until [`enter_lane`](Graphs::enter_lane) names another one. Each lane comes after all earlier commands of this stream. Where the
    /// driver gives no side streams, the commands of all lanes are queued in the order of the calls.
    ///
    /// Until [`end_lanes`](Graphs::end_lanes), which the caller always calls, it makes no other calls than those for lanes, those of [`Commands`] and
    /// [`launch_fused`](Graphs::launch_fused). At any other call the stream ends the lanes by itself.
    ///
    /// # Errors
    ///
    /// Errors of the driver; then there are no lanes.
    fn begin_lanes(&mut self, lanes: usize) -> Result<(), Error>;

    /// Queues the next commands on this lane, after the [marks](Graphs::mark_lane) of these numbers, which were set since the lanes began.
    ///
    /// # Errors
    ///
    /// Errors of the driver; a mark that no lane has ever set.
    fn enter_lane(&mut self, lane: usize, after: &[usize]) -> Result<(), Error>;

    /// Marks the place after every command of the current lane so far, for lanes that are entered later. The number is free, or its mark is not needed
    /// any longer.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    fn mark_lane(&mut self, mark: usize) -> Result<(), Error>;

    /// Ends the lanes: later commands of this stream come after those of all lanes.
    ///
    /// # Errors
    ///
    /// The device is lost.
    fn end_lanes(&mut self) -> Result<(), Error>;
}

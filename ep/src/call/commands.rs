//! Commands that one instruction queues on the stream of its device: one for each step of a program.

use std::fmt;

use crate::call::closure::InlineFn;
use crate::call::fused::FusedKernel;
use crate::call::graph::{BlockStart, GraphBlocks, GraphKey, GraphStart, LoopsRun};
use crate::call::kernel::KernelCall;
use crate::call::label::ProgramStep;
use crate::call::operand::Operand;
use crate::errors::error::Error;
use crate::tensor::scalar::Scalar;

/// A device's stream, as far as the steps of a program need it. The methods are those of [`Stream`](crate::Stream).
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

    /// Computes the steps of a group by one kernel; see [`Stream::launch_fused`](crate::Stream::launch_fused).
    ///
    /// # Errors
    /// Those of [`Stream::launch_fused`](crate::Stream::launch_fused).
    fn launch_fused(&mut self, kernel: &FusedKernel, views: &mut [Operand<'static>]) -> Result<bool, Error>;

    /// Announces commands that may be launched as a graph; see [`Stream::begin_graph`](crate::Stream::begin_graph).
    ///
    /// # Errors
    /// Those of [`Stream::begin_graph`](crate::Stream::begin_graph).
    fn begin_graph(&mut self, key: GraphKey<'_>, buffers: &[Operand<'static>]) -> Result<GraphStart, Error>;

    /// Announces commands with blocks; see [`Stream::begin_block_graph`](crate::Stream::begin_block_graph).
    ///
    /// # Errors
    /// Those of [`Stream::begin_block_graph`](crate::Stream::begin_block_graph).
    fn begin_block_graph(
        &mut self,
        key: GraphKey<'_>,
        buffers: &[Operand<'static>],
        blocks: GraphBlocks,
    ) -> Result<GraphStart, Error>;

    /// Begins a captured block; see [`Stream::begin_block`](crate::Stream::begin_block).
    ///
    /// # Errors
    /// Those of [`Stream::begin_block`](crate::Stream::begin_block).
    fn begin_block(&mut self, start: BlockStart, condition: &Operand<'static>) -> Result<(), Error>;

    /// Begins the other commands of a captured `if`; see [`Stream::begin_else`](crate::Stream::begin_else).
    ///
    /// # Errors
    /// Those of [`Stream::begin_else`](crate::Stream::begin_else).
    fn begin_else(&mut self) -> Result<(), Error>;

    /// Ends a captured block; see [`Stream::end_block`](crate::Stream::end_block).
    ///
    /// # Errors
    /// Those of [`Stream::end_block`](crate::Stream::end_block).
    fn end_block(&mut self) -> Result<(), Error>;

    /// How the loops of the last graph with loops have run; see [`Stream::loops_run`](crate::Stream::loops_run).
    fn loops_run(&mut self) -> LoopsRun;

    /// Ends a capture and launches the graph; see [`Stream::end_graph`](crate::Stream::end_graph).
    ///
    /// # Errors
    /// Those of [`Stream::end_graph`](crate::Stream::end_graph).
    fn end_graph(&mut self, whole: bool) -> Result<bool, Error>;

    /// Begins commands on several lanes; see [`Stream::begin_lanes`](crate::Stream::begin_lanes).
    ///
    /// # Errors
    /// Those of [`Stream::begin_lanes`](crate::Stream::begin_lanes).
    fn begin_lanes(&mut self, lanes: usize) -> Result<(), Error>;

    /// Queues the next commands on this lane; see [`Stream::enter_lane`](crate::Stream::enter_lane).
    ///
    /// # Errors
    /// Those of [`Stream::enter_lane`](crate::Stream::enter_lane).
    fn enter_lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error>;

    /// Marks a place of the current lane; see [`Stream::mark_lane`](crate::Stream::mark_lane).
    ///
    /// # Errors
    /// Those of [`Stream::mark_lane`](crate::Stream::mark_lane).
    fn mark_lane(&mut self, mark: usize) -> Result<(), Error>;

    /// Ends the lanes; see [`Stream::end_lanes`](crate::Stream::end_lanes).
    ///
    /// # Errors
    /// Those of [`Stream::end_lanes`](crate::Stream::end_lanes).
    fn end_lanes(&mut self) -> Result<(), Error>;
}

/// The arguments of a function that queues commands on the stream of its device.
pub struct CommandCall<'a> {
    /// The stream.
    pub(crate) stream: &'a mut dyn Commands,
    /// The operands of the instruction, whose memory the host cannot access. Not public: only a [`CommandSequence`](crate::CommandSequence)
    /// may queue them.
    pub(crate) operands: &'a mut [Operand<'static>],
    /// Left by a function that has not queued all of its commands.
    pub rest: Option<RestOfCommands>,
}

impl<'a> CommandCall<'a> {
    /// The arguments for commands that use the memory of `operands`, on `stream`.
    pub fn new(stream: &'a mut dyn Commands, operands: &'a mut [Operand<'static>]) -> CommandCall<'a> {
        CommandCall { stream, operands, rest: None }
    }
}

/// The rest of a function whose next commands depend on a condition of a block: the engine calls it once the device has copied the condition to the host.
#[derive(Debug)]
pub struct RestOfCommands {
    /// The step whose condition decides.
    pub condition: ProgramStep,
    /// Queues further commands. To be called with the same operands once all commands that were queued so far have run.
    pub function: InlineFn,
}

impl fmt::Debug for CommandCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandCall").field("operands", &self.operands).finish_non_exhaustive()
    }
}

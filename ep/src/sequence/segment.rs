//! What a device prepares: the steps of one segment of a program.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::call::label::ProgramStep;
use crate::sequence::branches::SequenceBranch;
use crate::sequence::buffers::SequenceBuffer;
use crate::sequence::graph::GraphOwner;
use crate::sequence::group::SequenceGroup;
use crate::sequence::others::OtherSteps;
use crate::sequence::step::SequenceStep;

/// The steps of one segment of a program, which one instruction runs. The operands of the instruction are its buffers.
#[derive(Debug, Default)]
pub struct Segment {
    /// The memory that its steps use.
    pub buffers: Vec<SequenceBuffer>,
    /// Its steps in their order, and how reports name them.
    pub steps: Vec<(SequenceStep, ProgramStep)>,
    /// Elementwise steps that may be computed together, in ascending order.
    pub groups: Vec<SequenceGroup>,
    /// The branches into which the steps are divided, if several of them may run side by side. A device may run all steps in their order instead.
    pub branches: Vec<SequenceBranch>,
    /// The buffer to which a device copies what the host reads, if a run may pause.
    pub flag: Option<SequenceFlag>,
    /// Steps that others run, in ascending order, if the device runs commands later. Groups and branches have none of them.
    pub others: Vec<OtherSteps>,
    /// How it is to run.
    pub options: SegmentOptions,
}

/// How a segment is to run.
#[derive(Clone, Debug, Default)]
pub struct SegmentOptions {
    /// Whether runs fail at the first step that writes an infinity or NaN.
    pub checks_finite: bool,
    /// Whether runs note how long each step takes.
    pub times_steps: bool,
    /// Whether streams that run steps one after the other [note](crate::Stream::step_note) each of them, and not only where one may hang.
    pub notes_steps: bool,
    /// The fewest calls of a driver that one launch of several commands may replace; `None` if each command is to be launched by itself.
    pub smallest_graph: Option<usize>,
    /// The owner of the graphs that streams make of its commands.
    pub graphs: GraphOwner,
    /// Set when loops must end.
    pub stops: Arc<AtomicBool>,
}

/// The buffer of a segment that the host reads: a device that runs commands later copies conditions of blocks and outputs to it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SequenceFlag(pub(super) usize);

impl SequenceFlag {
    /// The buffer at this index.
    ///
    /// # Safety
    ///
    /// * The host can access the memory of the operand that [`Stream::execute`](crate::Stream::execute) gets for the buffer, at the operand's address.
    /// * A run that has paused is continued only once everything that was queued on its stream before has completed.
    pub unsafe fn new(buffer: usize) -> SequenceFlag {
        SequenceFlag(buffer)
    }
}

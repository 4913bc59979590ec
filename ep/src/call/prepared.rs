//! Prepared segments of programs, and their runs.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::call::closure::InlineFn;
use crate::call::label::ProgramStep;
use crate::call::operand::Operand;
use crate::errors::sequence_error::SequenceError;

/// A segment as [`Device::prepare`](crate::Device::prepare) has made it for the streams of its device. Each device has a type of its own for it. Several
/// streams may execute it at once.
pub trait Prepared: Any + fmt::Debug + Send + Sync {
    /// Whether a run may pause, so that [`Stream::execute`](crate::Stream::execute) is called several times for it.
    fn pauses(&self) -> bool;

    /// Whether one of its steps runs code of a caller: a function, or a registered op. A caller that waits does not run it.
    fn calls_functions(&self) -> bool;

    /// How long each step took in all runs so far, in order; nothing unless runs are [timed](crate::SegmentOptions::times_steps). Steps that begin or end
    /// blocks are left out. Numbers of runs in progress may be missing.
    fn times(&self) -> Vec<SequenceTime>;

    /// About how many bytes it takes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// How long steps took in all runs so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceTime {
    /// The steps: one, or those of a group.
    pub steps: Range<usize>,
    /// How often they ran.
    pub runs: u64,
    /// How long all of these took together.
    pub time: Duration,
}

/// One run of a segment.
#[derive(Debug)]
pub struct SegmentRun {
    /// The number of the run, which decides about its random numbers.
    pub number: u64,
    /// The rounds that loops of the run have made before and within the segment: random numbers in loops depend on them.
    pub rounds: u64,
    /// When the first of them began, if a loop is bounded in time.
    pub loops_since: Option<Instant>,
    /// The stream and the number of the instruction, as in its [`Label`](crate::Label): reports of failures name it.
    pub instruction: (u32, u64),
    /// How far a run that has paused has come: a value of the stream that executes it.
    pub position: Option<Box<dyn Any + Send>>,
}

impl SegmentRun {
    /// The run of this number, at its beginning.
    pub fn new(number: u64) -> SegmentRun {
        SegmentRun { number, rounds: 0, loops_since: None, instruction: (0, 0), position: None }
    }
}

/// What executes prepared segments: a [`Stream`](crate::Stream).
pub trait Executes {
    /// [`Stream::execute`](crate::Stream::execute).
    ///
    /// # Errors
    /// Those of [`Stream::execute`](crate::Stream::execute).
    fn execute(
        &mut self,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError>;
}

/// The arguments of a function of an engine that runs a prepared segment.
pub struct SegmentCall<'a> {
    stream: &'a mut dyn Executes,
    /// The operands of the instruction. Not public: only a prepared segment may use them.
    operands: &'a mut [Operand<'static>],
    instruction: (u32, u64),
    /// Left by a function whose run has paused.
    pub rest: &'a mut Option<RestOfSegment>,
}

/// The rest of a run that has paused.
#[derive(Debug)]
pub struct RestOfSegment {
    /// The step at which the run has paused.
    pub step: ProgramStep,
    /// Goes on with the run. To be called with the same operands, once everything that was queued on the stream so far has completed, commands and waits of earlier
    /// instructions among it.
    pub function: InlineFn,
}

impl<'a> SegmentCall<'a> {
    /// The arguments for segments over `operands`, on `stream`. `instruction` is the stream and the number of the instruction, as in its label. The function leaves in `rest`
    /// what is to be done if its run pauses.
    pub fn new(
        stream: &'a mut dyn Executes,
        operands: &'a mut [Operand<'static>],
        instruction: (u32, u64),
        rest: &'a mut Option<RestOfSegment>,
    ) -> SegmentCall<'a> {
        SegmentCall { stream, operands, instruction, rest }
    }

    /// Executes a segment over the operands of the instruction.
    ///
    /// # Errors
    /// Those of [`Stream::execute`](crate::Stream::execute).
    #[inline]
    pub fn execute(
        &mut self,
        prepared: &dyn Prepared,
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        run.instruction = self.instruction;
        self.stream.execute(prepared, self.operands, run)
    }
}

impl fmt::Debug for SegmentCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentCall").field("operands", &self.operands).finish_non_exhaustive()
    }
}

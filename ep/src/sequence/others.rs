//! Steps that others run between the commands of a device, in a segment of a device that runs commands later.
//!
//! Such steps lie in loops and branches. The host runs functions of the caller, kernels over memory of the host, and copies between that memory and the
//! device's, in the thread that queues the commands. Another device runs the steps over its memory: their commands are queued on a stream of that device, which
//! is lent to the run. Before either, all commands of the segment so far have completed; after those of another device, the run pauses until they have.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::call::label::ProgramStep;
use crate::call::operand::Operand;
use crate::call::prepared::{Prepared, SegmentRun, SequenceTime};
use crate::call::step_note::StepNote;
use crate::errors::error::Error;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::commands::Commands;
use crate::sequence::step::{SequenceOperand, SequenceStep};

/// Neighbouring steps of a segment that the segment's device does not run, or not alone.
#[derive(Debug)]
pub struct OtherSteps {
    pub(super) steps: Range<usize>,
    pub(super) work: OtherWork,
}

/// The runners of steps of a segment that its device does not run alone.
#[derive(Debug)]
pub enum OtherWork {
    /// The host runs the steps, which may have blocks among them.
    Host(HostCode),
    /// Another device runs the steps, which may have blocks among them.
    Device(DeviceCode),
    /// The host copies the source of the step, a copy, to the flag; then a device copies the flag to the target: this one, or the segment's.
    Upload(HostCode, Option<DeviceCode>),
    /// A device copies the source of the step, a copy, to the flag: this one, or the segment's. Then the host copies the flag to the target.
    Download(HostCode, Option<DeviceCode>),
    /// The host reads the condition of the block that the step begins, which is in its memory.
    Condition,
    /// Another device copies the condition of the block that the step begins to the flag, where the host reads it.
    CopiedCondition(DeviceCode),
}

/// A prepared segment of some steps of another segment, over the same buffers.
pub(super) struct Code {
    prepared: Box<dyn Prepared>,
    /// How reports name the steps.
    labels: Arc<[ProgramStep]>,
    /// For each of the steps the operands that it uses.
    uses: Vec<StepUses>,
}

/// Steps that a device of the host has prepared, with what executes them.
pub struct HostCode {
    code: Code,
    execute: Arc<ExecuteOnHost>,
}

/// Steps that another device has prepared, with who lends streams of that device.
pub struct DeviceCode {
    code: Code,
    lender: Arc<dyn StreamLender>,
}

/// The operands that a step which another one runs uses.
#[derive(Debug)]
pub(super) struct StepUses {
    pub(super) operands: Vec<SequenceOperand>,
    /// For each operand its buffer.
    pub(super) of_buffers: Vec<usize>,
}

/// Executes a prepared segment of a device of the host on a stream of that device: [`Stream::execute`](crate::Stream::execute).
pub type ExecuteOnHost =
    dyn Fn(&dyn Prepared, &mut [Operand<'static>], &mut SegmentRun) -> Result<(), SequenceError> + Send + Sync;

/// Lends streams of a device to runs of segments that are another device's. Thread-safe.
pub trait StreamLender: Send + Sync {
    /// A stream with no commands, which nobody else uses until it is dropped.
    ///
    /// # Errors
    /// Those of [`Device::create_stream`](crate::Device::create_stream).
    fn lend(&self) -> Result<Box<dyn LentStream>, Error>;
}

/// A stream of a device that runs steps of a segment of another device. When it is dropped, all of its commands have completed, or never will.
pub trait LentStream: Send {
    /// [`Stream::execute`](crate::Stream::execute) on this stream, for an instruction of `stream`, all of whose commands have completed. What is queued on `stream` from now
    /// on comes after the commands of this one, if this returns without an error.
    ///
    /// # Errors
    /// Those of [`Stream::execute`](crate::Stream::execute), [`Stream::synchronize`](crate::Stream::synchronize).
    fn execute(
        &mut self,
        stream: &mut dyn Commands,
        prepared: &dyn Prepared,
        operands: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError>;

    /// Blocks until its commands have completed, which is at once when those that come after them have.
    ///
    /// # Errors
    /// Those of [`Stream::synchronize`](crate::Stream::synchronize): the device may be lost.
    fn finish(&mut self) -> Result<(), Error>;
}

/// A run of steps on a lent stream, which has paused or whose commands are queued.
pub(super) struct LentRun {
    pub(super) stream: Box<dyn LentStream>,
    pub(super) run: SegmentRun,
    /// Whether all of its commands are queued.
    pub(super) is_whole: bool,
}

impl OtherSteps {
    /// These steps of a segment. The steps of [`HostCode`] and [`DeviceCode`] count from the first of them.
    ///
    /// # Safety
    ///
    /// * The host can access the memory that its part of the work uses, at the addresses of the operands that [`Stream::execute`](crate::Stream::execute) gets, and
    ///   another device the memory that its part uses.
    /// * A run that has paused is continued only once everything that was queued on its stream before has completed, commands and waits of earlier instructions among
    ///   it, also if the run itself has queued nothing.
    /// * What executes [`HostCode`] uses the memory of its steps alone, keeps no operand, and leaves the operands as they are. The streams that are lent to [`DeviceCode`] do what
    ///   [`LentStream`] says.
    pub unsafe fn new(steps: Range<usize>, work: OtherWork) -> OtherSteps {
        OtherSteps { steps, work }
    }

    /// Whether the device of the segment takes no part in the steps.
    pub(super) fn are_all_of_others(&self) -> bool {
        matches!(self.work, OtherWork::Host(_) | OtherWork::Device(_))
    }

    /// Whether they are a block's condition.
    pub(super) fn is_condition(&self) -> bool {
        matches!(self.work, OtherWork::Condition | OtherWork::CopiedCondition(_))
    }

    /// The prepared code of its steps, without that which copies from or to the flag.
    pub(super) fn code(&self) -> Option<&Code> {
        match &self.work {
            OtherWork::Host(HostCode { code, .. })
            | OtherWork::Upload(HostCode { code, .. }, _)
            | OtherWork::Download(HostCode { code, .. }, _)
            | OtherWork::Device(DeviceCode { code, .. }) => Some(code),
            OtherWork::Condition | OtherWork::CopiedCondition(_) => None,
        }
    }

    /// All of its prepared code.
    pub(super) fn all_code(&self) -> impl Iterator<Item = &Code> {
        let of_device = match &self.work {
            OtherWork::Upload(_, copy) | OtherWork::Download(_, copy) => copy.as_ref(),
            OtherWork::CopiedCondition(copy) => Some(copy),
            OtherWork::Host(_) | OtherWork::Device(_) | OtherWork::Condition => None,
        };
        self.code().into_iter().chain(of_device.map(|of_device| &of_device.code))
    }
}

impl Code {
    fn new(steps: &[(SequenceStep, ProgramStep)], prepared: Box<dyn Prepared>) -> Code {
        let uses = |(step, _): &(SequenceStep, ProgramStep)| {
            // The host has scratch memory of its own.
            let in_buffers = step.operands.iter().filter_map(|operand| Some((operand.clone(), operand.buffer()?)));
            let (operands, of_buffers) = in_buffers.unzip();
            StepUses { operands, of_buffers }
        };
        let labels = steps.iter().map(|(_, label)| *label).collect();
        Code { prepared, labels, uses: steps.iter().map(uses).collect() }
    }

    /// The steps, and what each of them uses.
    pub(super) fn uses(&self) -> impl ExactSizeIterator<Item = (ProgramStep, &StepUses)> {
        self.labels.iter().copied().zip(&self.uses)
    }

    /// How long its steps took in all runs so far, counted from step `first` of the segment.
    pub(super) fn times(&self, first: usize) -> Vec<SequenceTime> {
        let shifted =
            |time: SequenceTime| SequenceTime { steps: time.steps.start + first..time.steps.end + first, ..time };
        self.prepared.times().into_iter().map(shifted).collect()
    }

    /// The bytes that it takes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let of_step = |uses: &StepUses| size_of_val(uses.operands.as_slice()) + size_of_val(uses.of_buffers.as_slice());
        let uses = size_of_val(self.uses.as_slice()) + self.uses.iter().map(of_step).sum::<usize>();
        self.prepared.heap_bytes() + size_of_val(&*self.labels) + uses
    }

    pub(super) fn prepared(&self) -> &dyn Prepared {
        &*self.prepared
    }
}

impl HostCode {
    /// These steps, which a device of the host has prepared as a segment of their own. It does not pause.
    pub fn new(
        steps: &[(SequenceStep, ProgramStep)],
        prepared: Box<dyn Prepared>,
        execute: Arc<ExecuteOnHost>,
    ) -> HostCode {
        HostCode { code: Code::new(steps, prepared), execute }
    }

    pub(super) fn code(&self) -> &Code {
        &self.code
    }

    /// Runs it over the buffers of the segment, of which it is the steps from `first` on. Notes that the stream is at the first of them.
    ///
    /// # Errors
    /// Those of [`Stream::execute`](crate::Stream::execute), with the numbers of the segment.
    pub(super) fn run(
        &self,
        first: usize,
        buffers: &mut [Operand<'static>],
        run: &mut SegmentRun,
        note: Option<&StepNote>,
    ) -> Result<(), SequenceError> {
        let noted = note.map(|note| note.run(&self.code.labels));
        noted.iter().for_each(|noted| noted.begin(0));
        (self.execute)(&*self.code.prepared, buffers, run).map_err(|error| error.counted_from(first))
    }
}

impl DeviceCode {
    /// These steps, which another device has prepared as a segment of their own. Where they copy from or to the flag, they do not pause.
    pub fn new(
        steps: &[(SequenceStep, ProgramStep)],
        prepared: Box<dyn Prepared>,
        lender: Arc<dyn StreamLender>,
    ) -> DeviceCode {
        DeviceCode { code: Code::new(steps, prepared), lender }
    }

    pub(super) fn code(&self) -> &Code {
        &self.code
    }

    /// A stream of the device.
    ///
    /// # Errors
    /// Those of [`StreamLender::lend`].
    pub(super) fn lend(&self) -> Result<Box<dyn LentStream>, Error> {
        self.lender.lend()
    }
}

impl fmt::Debug for HostCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCode").field("prepared", &self.code.prepared).finish_non_exhaustive()
    }
}

impl fmt::Debug for DeviceCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCode").field("prepared", &self.code.prepared).finish_non_exhaustive()
    }
}

impl fmt::Debug for LentRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentRun").field("run", &self.run).finish_non_exhaustive()
    }
}

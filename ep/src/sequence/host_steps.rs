//! Steps that the host runs between the commands of a device, in a segment of a device that runs commands later.
//!
//! Such steps lie in loops and branches: functions of the caller, kernels over memory of the host, and copies between that memory and the device's. The host
//! runs them in the thread that queues the commands, once all commands before them have completed.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::call::label::ProgramStep;
use crate::call::operand::Operand;
use crate::call::prepared::{Prepared, SegmentRun, SequenceTime};
use crate::call::step_note::StepNote;
use crate::errors::sequence_error::SequenceError;
use crate::sequence::step::{SequenceOperand, SequenceStep};

/// Neighbouring steps of a segment that the host runs.
#[derive(Debug)]
pub struct HostSteps {
    pub(super) steps: Range<usize>,
    pub(super) work: HostWork,
}

/// What the host does for steps of a segment that a device runs.
#[derive(Debug)]
pub enum HostWork {
    /// It runs the steps, which may have blocks among them.
    Run(HostCode),
    /// It copies the source of the step, a copy, to the flag; then the device copies the flag to the target.
    Upload(HostCode),
    /// The device copies the source of the step, a copy, to the flag; then the host copies the flag to the target.
    Download(HostCode),
    /// It reads the condition of the block that the step begins, which is in its memory.
    Condition,
}

/// A prepared segment of a device of the host, over the same buffers, with what executes it.
pub struct HostCode {
    prepared: Box<dyn Prepared>,
    execute: Arc<ExecuteOnHost>,
    /// How reports name the steps.
    labels: Arc<[ProgramStep]>,
    /// For each of the steps the operands that it uses.
    uses: Vec<HostUses>,
}

/// The operands that a step which the host runs uses.
#[derive(Debug)]
pub(super) struct HostUses {
    pub(super) operands: Vec<SequenceOperand>,
    /// For each operand its buffer.
    pub(super) of_buffers: Vec<usize>,
}

/// Executes a prepared segment of a device of the host on a stream of that device: [`Stream::execute`](crate::Stream::execute).
pub type ExecuteOnHost =
    dyn Fn(&dyn Prepared, &mut [Operand<'static>], &mut SegmentRun) -> Result<(), SequenceError> + Send + Sync;

impl HostSteps {
    /// These steps of a segment. The steps of [`HostCode`] count from the first of them.
    ///
    /// # Safety
    ///
    /// * The host can access the memory that the work uses, at the addresses of the operands that [`Stream::execute`](crate::Stream::execute) gets.
    /// * A run that has paused is continued only once everything that was queued on its stream before has completed, commands and waits of earlier instructions among
    ///   it, also if the run itself has queued nothing.
    /// * What executes [`HostCode`] uses the memory of its steps alone, keeps no operand, and leaves the operands as they are.
    pub unsafe fn new(steps: Range<usize>, work: HostWork) -> HostSteps {
        HostSteps { steps, work }
    }

    /// Whether the device of the host that has prepared the steps has checked their form, and not the device of the segment.
    pub(super) fn is_checked_by_host(&self) -> bool {
        matches!(self.work, HostWork::Run(_))
    }

    /// The prepared code that the host executes; `None` where it only reads a condition.
    pub(super) fn code(&self) -> Option<&HostCode> {
        match &self.work {
            HostWork::Run(code) | HostWork::Upload(code) | HostWork::Download(code) => Some(code),
            HostWork::Condition => None,
        }
    }
}

impl HostCode {
    /// These steps, which a device of the host has prepared as a segment of their own. It does not pause.
    pub fn new(
        steps: &[(SequenceStep, ProgramStep)],
        prepared: Box<dyn Prepared>,
        execute: Arc<ExecuteOnHost>,
    ) -> HostCode {
        let uses = |(step, _): &(SequenceStep, ProgramStep)| {
            // The host has scratch memory of its own.
            let in_buffers = step.operands.iter().filter_map(|operand| Some((operand.clone(), operand.buffer()?)));
            let (operands, of_buffers) = in_buffers.unzip();
            HostUses { operands, of_buffers }
        };
        let labels = steps.iter().map(|(_, label)| *label).collect();
        HostCode { prepared, execute, labels, uses: steps.iter().map(uses).collect() }
    }

    /// The steps, and what each of them uses.
    pub(super) fn uses(&self) -> impl ExactSizeIterator<Item = (ProgramStep, &HostUses)> {
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
        let of_step = |uses: &HostUses| size_of_val(uses.operands.as_slice()) + size_of_val(uses.of_buffers.as_slice());
        let uses = size_of_val(self.uses.as_slice()) + self.uses.iter().map(of_step).sum::<usize>();
        self.prepared.heap_bytes() + size_of_val(&*self.labels) + uses
    }

    pub(super) fn prepared(&self) -> &dyn Prepared {
        &*self.prepared
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
        let noted = note.map(|note| note.run(&self.labels));
        noted.iter().for_each(|noted| noted.begin(0));
        (self.execute)(&*self.prepared, buffers, run).map_err(|error| error.counted_from(first))
    }
}

impl fmt::Debug for HostCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCode").field("prepared", &self.prepared).finish_non_exhaustive()
    }
}

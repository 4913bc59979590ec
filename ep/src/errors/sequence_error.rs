//! Why a device cannot prepare the steps of a segment, or why a run of them stopped.

use std::time::Duration;

use crate::errors::error::Error;

/// Why steps are no sequence, or why a run stopped. Steps count from 0.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// The operands of a step do not fit what it does.
    #[error("step {step} needs {expected}; found {found}")]
    Operands {
        /// The step.
        step: usize,
        /// The operands or the kernel that its work needs.
        expected: &'static str,
        /// The operands or the kernel that the caller gave.
        found: String,
    },
    /// An operand reaches past its buffer.
    #[error("operand {operand} of step {step} reaches byte {end} of buffer {buffer}, which has {bytes} bytes")]
    PastBuffer {
        /// The step.
        step: usize,
        /// The operand.
        operand: usize,
        /// The end of the bytes that it reaches.
        end: usize,
        /// The buffer.
        buffer: usize,
        /// The size of the buffer in bytes.
        bytes: usize,
    },
    /// Steps of a group cannot run block by block.
    #[error("step {step} cannot run block by block in its group: {what}")]
    Group {
        /// The step.
        step: usize,
        /// Why not.
        what: String,
    },
    /// Blocks do not end where they must.
    #[error("step {step}: {what}")]
    Blocks {
        /// The step.
        step: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Steps cannot run on several lanes.
    #[error("step {step} cannot run beside others: {what}")]
    Branches {
        /// The step.
        step: usize,
        /// Why not.
        what: String,
    },
    /// The loops of a run have made as many rounds as they may, and the operand of a `While` is still true.
    #[error(
        "step {step}: the condition of this while is still true after {rounds} rounds of all loops, the most that may run"
    )]
    Rounds {
        /// The step.
        step: usize,
        /// The rounds.
        rounds: u64,
    },
    /// The loops of a run have gone on for as long as they may, and the operand of a `While` is still true.
    #[error(
        "step {step}: the condition of this while is still true after {most:?} and {rounds} rounds of all loops, the longest that they may take"
    )]
    LoopTime {
        /// The step.
        step: usize,
        /// The time.
        most: Duration,
        /// The rounds until then.
        rounds: u64,
    },
    /// A `While` would begin another round, and loops were told to stop.
    #[error("step {step}: this while was stopped while its condition was true")]
    Stopped {
        /// The step.
        step: usize,
    },
    /// A step wrote an infinity or NaN, and the sequence looks for them.
    #[error(
        "step {step} wrote {value} to element {index:?} of its output, and the sequence looks for infinities and NaN"
    )]
    NotFinite {
        /// The step.
        step: usize,
        /// The index of the first such element, one number for each axis.
        index: Vec<usize>,
        /// NaN, `inf` or `-inf`.
        value: f64,
    },
    /// The operands of a run are not the buffers of the sequence.
    #[error("it was run over other operands than it was prepared for: {0}")]
    Buffers(String),
    /// The operands of a run overlap, one of them written, or too many are written. Nothing has run.
    #[error("{0}")]
    Refused(Error),
    /// Another kind of device has prepared the segment.
    #[error("another kind of device has prepared the segment; prepare it by the device of the stream that executes it")]
    Foreign,
    /// A function failed; the text is its error's.
    #[error("step {step}: {error}")]
    Function {
        /// The step.
        step: usize,
        /// The text of the function's error.
        error: String,
    },
    /// A step failed. The steps before it have run, and those after it have not; in a group, this holds for each block by itself.
    #[error("step {step}: {error}")]
    Step {
        /// The step.
        step: usize,
        /// Its error.
        error: Error,
    },
}

impl SequenceError {
    /// The same error, with its step counted from an earlier one: that of number 0 becomes number `first`.
    #[must_use]
    pub fn counted_from(mut self, first: usize) -> SequenceError {
        match &mut self {
            SequenceError::Operands { step, .. }
            | SequenceError::PastBuffer { step, .. }
            | SequenceError::Group { step, .. }
            | SequenceError::Blocks { step, .. }
            | SequenceError::Branches { step, .. }
            | SequenceError::Rounds { step, .. }
            | SequenceError::LoopTime { step, .. }
            | SequenceError::Stopped { step }
            | SequenceError::NotFinite { step, .. }
            | SequenceError::Function { step, .. }
            | SequenceError::Step { step, .. } => *step += first,
            SequenceError::Buffers(_) | SequenceError::Refused(_) | SequenceError::Foreign => {}
        }
        self
    }
}

crate::debug_as_display!(SequenceError);

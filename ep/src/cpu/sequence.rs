//! Sequences: kernels, copies and fills that one call of a function runs one after the other, in the calling thread.
//!
//! A compiled program runs as one function: its operands are *buffers*, and the operands of each step are views of these buffers at
//! fixed places. [`CpuSequence::new`] checks all steps once; a run only adds the addresses of the buffers.
//!
//! Invariant: the bytes that the operands of a step can reach lie within their buffers, and a buffer of which a step writes a part is
//! noted as written. [`CpuSequence::run`] compares each buffer of a call with that, so no step reaches memory that the call did not
//! declare.

use crate::call::fn_context::FnContext;
use crate::call::kernel::{Kernel, KernelCall};
use crate::call::operand::{Access, Operand};
use crate::cpu::kernels;
use crate::errors::error::Error;
use crate::names::device_id::DeviceKind;
use crate::tensor::dtype::DType;
use crate::tensor::footprint::Footprint;
use crate::tensor::layout::Layout;
use crate::tensor::params::Params;
use crate::tensor::scalar::Scalar;

/// The most operands of a step: three inputs and an output.
const MOST_OPERANDS: usize = 4;

/// A view of a buffer that a step reads or writes.
#[derive(Clone, Debug)]
pub struct SequenceOperand {
    /// The buffer, as an index into the operands of the function.
    pub buffer: usize,
    /// Where the view's storage begins in the buffer, in bytes.
    pub offset: usize,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its layout, counted from `offset`.
    pub layout: Layout,
    /// How the step uses it.
    pub access: Access,
}

/// The work of a step.
#[derive(Clone, Debug)]
pub enum SequenceWork {
    /// Runs a kernel for CPUs: inputs first, then the output.
    Kernel(Kernel, Params),
    /// Copies the first operand to the second.
    Copy,
    /// Sets every element of its only operand.
    Fill(Scalar),
}

/// One step of a sequence.
#[derive(Clone, Debug)]
pub struct SequenceStep {
    /// Its work.
    pub work: SequenceWork,
    /// Its operands: those that it reads, then the one that it writes.
    pub operands: Vec<SequenceOperand>,
}

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
    /// The operands of the function are not the buffers of the sequence.
    #[error("the function was called with other operands than its sequence was made for: {0}")]
    Buffers(String),
    /// A step failed; those before it have run, and those behind it have not.
    #[error("step {step}: {error}")]
    Step {
        /// The step.
        step: usize,
        /// Its error.
        error: Error,
    },
}

crate::debug_as_display!(SequenceError);

/// A buffer, as all steps together use it.
#[derive(Clone, Debug)]
struct Buffer {
    bytes: usize,
    written: bool,
}

#[derive(Debug)]
struct CheckedStep {
    step: SequenceStep,
    /// Whether two operands share bytes, one of them written. Then the kernel must be told at each call.
    overlaps: bool,
}

/// Steps that were checked: every operand lies within its buffer.
#[derive(Debug)]
pub struct CpuSequence {
    buffers: Vec<Buffer>,
    steps: Vec<CheckedStep>,
}

impl CpuSequence {
    /// Checks `steps`, whose operands are views of buffers of `buffers` bytes each.
    ///
    /// # Errors
    /// [`SequenceError::Operands`] and [`SequenceError::PastBuffer`].
    pub fn new(buffers: &[usize], steps: impl IntoIterator<Item = SequenceStep>) -> Result<CpuSequence, SequenceError> {
        let mut buffers: Vec<Buffer> = buffers.iter().map(|&bytes| Buffer { bytes, written: false }).collect();
        let mut checked = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            check_form(number, &step)?;
            for (place, operand) in step.operands.iter().enumerate() {
                check_reach(number, place, operand, &mut buffers)?;
            }
            let overlaps = step.operands.split_last().is_some_and(|(output, inputs)| {
                inputs.iter().any(|input| input.buffer == output.buffer && bytes_of(input).overlaps(&bytes_of(output)))
            });
            checked.push(CheckedStep { step, overlaps });
        }
        Ok(CpuSequence { buffers, steps: checked })
    }

    /// Runs all steps over the operands of `context`, which are the buffers in the same order. Kernels use as many threads as those of the
    /// stream that calls the function. Blocks until all steps have run. Afterwards all written operands of `context` count as taken, also
    /// after an error.
    ///
    /// # Errors
    /// [`SequenceError::Buffers`], and nothing has run: the number of operands or the size of one differs, one is not contiguous, or one
    /// is written by a step and was declared as read, or was taken before. [`SequenceError::Step`] for the first step that fails.
    pub fn run(&self, context: &mut FnContext<'_>) -> Result<(), SequenceError> {
        let buffers = context.take_all().map_err(|error| SequenceError::Buffers(error.to_string()))?;
        self.check_buffers(buffers)?;
        let mut operands: [Operand; MOST_OPERANDS] = std::array::from_fn(|_| Operand::blank());
        for (number, CheckedStep { step, overlaps }) in self.steps.iter().enumerate() {
            let operands = &mut operands[..step.operands.len()];
            for (operand, described) in operands.iter_mut().zip(&step.operands) {
                let SequenceOperand { buffer, offset, dtype, layout, access } = described;
                // SAFETY: `check_reach` has checked that the layout lies within the buffer behind `offset`, and `check_buffers` that
                // the operand of the call is a contiguous view of as many bytes, which it may write if a step does. By the duties of
                // `Operand::new`, whoever made that operand guarantees that the bytes are alive, initialised, and used by this call
                // alone; `take_all` excludes slices of the written ones. Operands of one step that overlap are used in one call.
                unsafe { operand.set(buffers[*buffer].ptr().wrapping_add(*offset), *dtype, layout, *access) };
            }
            run_step(&step.work, operands, *overlaps).map_err(|error| SequenceError::Step { step: number, error })?;
        }
        Ok(())
    }

    fn check_buffers(&self, operands: &[Operand]) -> Result<(), SequenceError> {
        if operands.len() != self.buffers.len() {
            let (expected, found) = (self.buffers.len(), operands.len());
            return Err(SequenceError::Buffers(format!("{expected} operands are needed, and {found} were found")));
        }
        for (number, (operand, buffer)) in operands.iter().zip(&self.buffers).enumerate() {
            let bytes = operand.layout().elements() * operand.dtype().size();
            let refused = if !operand.is_contiguous() {
                "it is not contiguous".to_owned()
            } else if bytes != buffer.bytes {
                format!("it has {bytes} bytes, and {} are needed", buffer.bytes)
            } else if buffer.written && !operand.access().writes() {
                "it is written, and was declared as read".to_owned()
            } else {
                continue;
            };
            return Err(SequenceError::Buffers(format!("operand {number}: {refused}")));
        }
        Ok(())
    }
}

#[inline]
fn run_step(work: &SequenceWork, operands: &mut [Operand], overlaps: bool) -> Result<(), Error> {
    match (work, operands) {
        (SequenceWork::Kernel(kernel, params), operands) => {
            let inputs = operands.len() - 1;
            let mut call = KernelCall { kernel: *kernel, operands, inputs, params };
            if overlaps {
                call.mark_overlapping_shared()?;
            }
            Ok((kernel.run)(&mut call)?)
        }
        (SequenceWork::Copy, [source, target]) => kernels::copy(source, target),
        (SequenceWork::Fill(value), [target]) => kernels::fill(target, *value),
        (SequenceWork::Copy | SequenceWork::Fill(_), _) => unreachable!("`check_form` has counted the operands"),
    }
}

/// The bytes of a view, counted from the start of its buffer.
fn bytes_of(operand: &SequenceOperand) -> Footprint {
    Footprint::scaled(&operand.layout, operand.offset, operand.dtype.size())
}

/// Checks the number of operands and their accesses.
fn check_form(number: usize, step: &SequenceStep) -> Result<(), SequenceError> {
    let (inputs, expected) = match &step.work {
        SequenceWork::Kernel(kernel, _) if kernel.device != DeviceKind::Cpu => {
            let found = format!("{kernel:?}");
            return Err(SequenceError::Operands { step: number, expected: "a kernel for CPUs", found });
        }
        SequenceWork::Kernel(kernel, _) => {
            (kernel.op.arity(), "the inputs of its op, which are read, and an output, which is written")
        }
        SequenceWork::Copy => (1, "an operand that is read and one that is written"),
        SequenceWork::Fill(_) => (0, "one operand, which is written"),
    };
    let accesses: Vec<Access> = step.operands.iter().map(|operand| operand.access).collect();
    let fits = accesses.len() == inputs + 1
        && accesses.len() <= MOST_OPERANDS
        && accesses[..inputs].iter().all(|access| *access == Access::Read)
        && accesses[inputs] == Access::Write;
    if fits {
        return Ok(());
    }
    Err(SequenceError::Operands { step: number, expected, found: format!("{accesses:?}") })
}

/// Checks that an operand lies within its buffer, and notes a write.
fn check_reach(
    number: usize,
    place: usize,
    operand: &SequenceOperand,
    buffers: &mut [Buffer],
) -> Result<(), SequenceError> {
    let count = buffers.len();
    let Some(buffer) = buffers.get_mut(operand.buffer) else {
        let found = format!("buffer {} of {count}", operand.buffer);
        return Err(SequenceError::Operands { step: number, expected: "buffers of the sequence", found });
    };
    let elements = operand.layout.span_elements();
    if !elements.is_empty() {
        let end = elements.end.checked_mul(operand.dtype.size()).and_then(|end| end.checked_add(operand.offset));
        let end = end.unwrap_or(usize::MAX);
        if end > buffer.bytes {
            let bytes = buffer.bytes;
            return Err(SequenceError::PastBuffer { step: number, operand: place, end, buffer: operand.buffer, bytes });
        }
    }
    buffer.written |= operand.access.writes();
    Ok(())
}

#[cfg(test)]
#[path = "sequence_tests.rs"]
mod tests;

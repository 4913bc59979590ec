//! A step of a sequence: what it does, and on which views of memory.

use std::time::Duration;

use smallvec::SmallVec;

use crate::call::kernel::Kernel;
use crate::call::operand::Access;
use crate::errors::sequence_error::SequenceError;
use crate::names::device_kind::DeviceKind;
use crate::sequence::function::SequenceFunction;
use crate::tensor::dtype::DType;
use crate::tensor::footprint::Footprint;
use crate::tensor::layout::Layout;
use crate::tensor::op::Op;
use crate::tensor::params::{Extra, Params};
use crate::tensor::scalar::Scalar;

/// The most operands of a step: three inputs and an output.
pub const MOST_OPERANDS: usize = 4;

/// Where the storage of an operand is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SequenceMemory {
    /// In a buffer of the caller.
    Buffer {
        /// The buffer, as an index into the operands of the function.
        index: usize,
        /// Where the storage begins in the buffer, in bytes.
        offset: usize,
    },
    /// In the scratch memory of the computing thread, which holds one block of the value at a time: the piece with this number. Only for
    /// values that one [group](crate::SequenceGroup) writes and reads.
    Scratch(usize),
}

/// A view of memory that a step reads or writes.
#[derive(Clone, Debug)]
pub struct SequenceOperand {
    /// Where its storage begins.
    pub memory: SequenceMemory,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its layout, counted from the beginning of the storage.
    pub layout: Layout,
    /// How the step uses it.
    pub access: Access,
}

/// The work of a step.
#[derive(Clone, Debug)]
pub enum SequenceWork {
    /// Runs a kernel: inputs first, then the output.
    Kernel(Kernel, Params),
    /// Runs a kernel that draws random numbers into its only operand. The parameters are those of run 0.
    Draw {
        /// The kernel.
        kernel: Kernel,
        /// Its parameters in run 0, [`Extra::Random`] among them.
        params: Params,
        /// By how many counter blocks each run's numbers start after those of the previous run.
        advance: u64,
        /// Whether it lies in a loop: then each round draws numbers of its own.
        in_loop: bool,
    },
    /// Copies the first operand to the second.
    Copy,
    /// Sets every element of its only operand.
    Fill(Scalar),
    /// Calls a function of the caller over the operands, which it may read, write, or both. On CPUs alone, outside of groups.
    Function(SequenceFunction),
    /// Begins a block of steps that runs if the only operand, one bool, is true.
    If,
    /// Ends the block of an `If`, and begins one that runs if the operand was false.
    Else,
    /// Begins a block of steps that runs as long as the only operand, one bool, is true before a round.
    While {
        /// A run fails if its loops together would make more rounds than this.
        most_rounds: u64,
        /// A run fails if it would begin a round this long after the first round of its loops.
        most_time: Option<Duration>,
    },
    /// Ends the innermost block.
    End,
}

impl SequenceWork {
    /// Whether it begins or ends a block, and computes nothing.
    pub fn is_mark(&self) -> bool {
        matches!(self, SequenceWork::If | SequenceWork::Else | SequenceWork::While { .. } | SequenceWork::End)
    }

    /// Whether it runs code of a caller: a function, or a registered op.
    pub fn is_code_of_a_caller(&self) -> bool {
        match self {
            SequenceWork::Function(_) => true,
            SequenceWork::Kernel(kernel, _) | SequenceWork::Draw { kernel, .. } => {
                matches!(kernel.op, Op::Registered(_))
            }
            _ => false,
        }
    }

    /// Whether it writes an infinity or NaN that its caller gave as a number: the value of a fill or of the margins of a padding, or an input.
    pub fn is_given_infinities(&self) -> bool {
        let is_infinite = |value: Scalar| matches!(value, Scalar::F64(value) if !value.is_finite());
        match self {
            SequenceWork::Fill(value) => is_infinite(*value),
            SequenceWork::Kernel(_, Params { extra: Extra::Pad { value, .. }, .. }) => is_infinite(*value),
            SequenceWork::Kernel(_, params) => params.numbers().iter().any(|(_, value)| is_infinite(value)),
            _ => false,
        }
    }
}

/// One step of a sequence.
#[derive(Clone, Debug)]
pub struct SequenceStep {
    /// Its work.
    pub work: SequenceWork,
    /// Its operands: those that it reads, then the one that it writes. A function has any.
    pub operands: Vec<SequenceOperand>,
}

impl SequenceOperand {
    /// The bytes of the view, counted from the beginning of its buffer; `None` for scratch memory.
    pub fn bytes(&self) -> Option<(usize, Footprint)> {
        match self.memory {
            SequenceMemory::Buffer { index, offset } => {
                Some((index, Footprint::scaled(&self.layout, offset, self.dtype.size())))
            }
            SequenceMemory::Scratch(_) => None,
        }
    }

    /// Its buffer; `None` for scratch memory.
    pub fn buffer(&self) -> Option<usize> {
        match self.memory {
            SequenceMemory::Buffer { index, .. } => Some(index),
            SequenceMemory::Scratch(_) => None,
        }
    }

    /// Whether both have the same elements in the same order, of the same size.
    pub fn is_same_view(&self, other: &SequenceOperand) -> bool {
        self.memory == other.memory
            && self.layout.offset() == other.layout.offset()
            && self.layout.same_steps(&other.layout)
            && self.dtype.size() == other.dtype.size()
    }

    /// Whether both are views of one buffer that share bytes.
    pub fn overlaps(&self, other: &SequenceOperand) -> bool {
        match (self.bytes(), other.bytes()) {
            (Some((buffer, bytes)), Some((other_buffer, other_bytes))) => {
                buffer == other_buffer && bytes.overlaps(&other_bytes)
            }
            _ => false,
        }
    }
}

impl SequenceStep {
    /// For each operand of a kernel, whether it gives no slices, because it is an input and the output at once.
    ///
    /// # Errors
    /// [`SequenceError::Operands`] if an input shares bytes with the output in another way, or the op [may not write](crate::Op::may_write) it.
    pub fn shared_operands(&self, number: usize) -> Result<SmallVec<[bool; MOST_OPERANDS]>, SequenceError> {
        let mut shared = SmallVec::from_elem(false, self.operands.len());
        let (SequenceWork::Kernel(kernel, _) | SequenceWork::Draw { kernel, .. }, Some((output, inputs))) =
            (&self.work, self.operands.split_last())
        else {
            return Ok(shared);
        };
        for (place, input) in inputs.iter().enumerate().filter(|(_, input)| input.overlaps(output)) {
            if !kernel.op.may_write(place) || !input.is_same_view(output) {
                let expected = "an output that shares no bytes with an input, or that an elementwise kernel, or one in place, reads as exactly the same view";
                let found = format!("{kernel:?} from {input:?} to {output:?}");
                return Err(SequenceError::Operands { step: number, expected, found });
            }
            (shared[place], shared[inputs.len()]) = (true, true);
        }
        Ok(shared)
    }

    /// Checks the kernel, the number of operands and their accesses; `number` is that of the step.
    pub fn check_form(&self, number: usize, device: DeviceKind) -> Result<(), SequenceError> {
        let (inputs, expected) = match &self.work {
            SequenceWork::Kernel(kernel, _) | SequenceWork::Draw { kernel, .. } if kernel.device != device => {
                let found = format!("{kernel:?}");
                let expected = "a kernel for the kind of device that runs the sequence";
                return Err(SequenceError::Operands { step: number, expected, found });
            }
            SequenceWork::Kernel(kernel, params) | SequenceWork::Draw { kernel, params, .. } => {
                let numbers = params.numbers();
                // Those of a registered op are no elements.
                let is_number = |value: Scalar| kernel.op.is_over_tensors() || value.fits(kernel.dtype);
                if !numbers.fit(kernel.op) || !numbers.iter().all(|(_, value)| is_number(value)) {
                    let found = format!("{kernel:?} with the numbers {numbers:?}");
                    return Err(SequenceError::Operands {
                        step: number,
                        expected: "numbers that fit the kernel",
                        found,
                    });
                }
                (
                    params.tensors(kernel.op),
                    "the tensors among the inputs of its op, which are read, and an output, which is written",
                )
            }
            SequenceWork::Function(_) if device.is_cpu() => return Ok(()),
            SequenceWork::Function(_) => {
                let (expected, found) = ("work that its device can run", "a function of the caller".to_owned());
                return Err(SequenceError::Operands { step: number, expected, found });
            }
            SequenceWork::Copy => (1, "an operand that is read and one that is written"),
            SequenceWork::Fill(_) => (0, "one operand, which is written"),
            SequenceWork::If | SequenceWork::While { .. } => return self.check_condition(number),
            SequenceWork::Else | SequenceWork::End if self.operands.is_empty() => return Ok(()),
            SequenceWork::Else | SequenceWork::End => {
                let found = self.operands.len().to_string();
                return Err(SequenceError::Operands { step: number, expected: "no operands", found });
            }
        };
        let accesses: Vec<Access> = self.operands.iter().map(|operand| operand.access).collect();
        let fits = accesses.len() == inputs + 1
            && accesses[..inputs].iter().all(|access| *access == Access::Read)
            && accesses[inputs] == Access::Write;
        if fits {
            return Ok(());
        }
        Err(SequenceError::Operands { step: number, expected, found: format!("{accesses:?}") })
    }

    fn check_condition(&self, number: usize) -> Result<(), SequenceError> {
        if let [condition] = &self.operands[..]
            && condition.access == Access::Read
            && (condition.dtype, condition.layout.elements()) == (DType::Bool, 1)
        {
            return Ok(());
        }
        let expected = "one operand, a bool, which is read";
        Err(SequenceError::Operands { step: number, expected, found: format!("{:?}", self.operands) })
    }
}

/// How many counter blocks the numbers of a round of a loop start after those of the round before: more than all runs together draw outside of loops.
const BLOCKS_OF_A_ROUND: u64 = 1 << 40;

/// The parameters of a [`SequenceWork::Draw`] in run number `run`, after so many `rounds` of the run's loops if it lies in one. Numbers repeat after 2^24 rounds, after as many
/// runs as draw 2^40 counter blocks, and after 2^64 counter blocks.
pub fn params_of_run(params: &Params, (advance, run): (u64, u64), rounds: u64) -> Params {
    match params.extra {
        Extra::Random { seed, counter } => {
            let of_round = BLOCKS_OF_A_ROUND.wrapping_mul(rounds);
            let counter = counter.wrapping_add(advance.wrapping_mul(run)).wrapping_add(of_round);
            Params { extra: Extra::Random { seed, counter }, ..*params }
        }
        _ => *params,
    }
}

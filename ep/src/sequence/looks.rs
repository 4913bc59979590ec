//! Looks at what the steps of a sequence on a device have written: each output of floats is copied to the flag, where the host finds infinities and NaN. If
//! it finds one, the inputs are copied and looked at too, because a step whose input has one is not where it comes from. Inputs that a step
//! overwrites are copied before.

use std::slice;

use smallvec::SmallVec;

use crate::call::operand::{Access, Operand};
use crate::errors::sequence_error::SequenceError;
use crate::sequence::buffers::{Buffers, located};
use crate::sequence::finite::first_not_finite;
use crate::sequence::step::{MOST_OPERANDS, SequenceMemory, SequenceOperand, SequenceStep};
use crate::tensor::layout::Layout;

/// How the command of a step is looked at. The host looks at one copy at a time.
#[derive(Debug)]
pub(super) struct Look {
    /// The inputs of floats that the step overwrites.
    pub(super) before: SmallVec<[LookCopy; 1]>,
    /// The output.
    pub(super) output: LookCopy,
    /// The other inputs of floats.
    pub(super) inputs: SmallVec<[LookCopy; MOST_OPERANDS]>,
}

/// A copy of an operand to the flag.
#[derive(Debug)]
pub(super) struct LookCopy {
    /// The operand, and the view of the flag with the same elements and no gaps.
    pub(super) copy: [SequenceOperand; 2],
    /// The buffers of both.
    pub(super) of_buffers: [usize; 2],
}

impl Look {
    /// The look at step `number`; `None` if it writes no floats, or infinities that were given as a number. `flag` is the buffer that the host can read.
    ///
    /// # Errors
    /// [`SequenceError::PastBuffer`] if the flag is too small; [`SequenceError::Operands`] if there is none.
    pub(super) fn new(
        number: usize,
        step: &SequenceStep,
        flag: Option<usize>,
        buffers: &mut Buffers,
    ) -> Result<Option<Look>, SequenceError> {
        let Some((output, inputs)) = step
            .operands
            .split_last()
            .filter(|(output, _)| output.access.writes() && !step.work.is_mark() && !step.work.is_given_infinities())
        else {
            return Ok(None);
        };
        let place = step.operands.len();
        let mut copy = |operand| LookCopy::new(number, place, operand, flag, buffers);
        let Some(of_output) = copy(output)? else { return Ok(None) };
        let mut look = Look { before: SmallVec::new(), output: of_output, inputs: SmallVec::new() };
        for (place, input) in inputs.iter().enumerate() {
            if inputs[..place].iter().any(|other| other.is_same_view(input) && other.dtype == input.dtype) {
                continue;
            }
            let copies = if input.overlaps(output) { None } else { Some(&mut look.inputs) };
            match (copies, copy(input)?) {
                (Some(copies), Some(copy)) => copies.push(copy),
                (None, Some(copy)) => look.before.push(copy),
                (_, None) => {}
            }
        }
        Ok(Some(look))
    }
}

impl LookCopy {
    /// The copy of an operand; `None` if it has no floats. The flag becomes operand number `place` of the step.
    ///
    /// # Errors
    /// Those of [`Look::new`].
    fn new(
        number: usize,
        place: usize,
        operand: &SequenceOperand,
        flag: Option<usize>,
        buffers: &mut Buffers,
    ) -> Result<Option<LookCopy>, SequenceError> {
        let has_floats = operand.dtype.is_float() && operand.layout.elements() > 0;
        let Some(of_operand) = operand.buffer().filter(|_| has_floats) else { return Ok(None) };
        let Some(index) = flag else {
            let (expected, found) = ("a flag to copy the operands of this step to", "none".to_owned());
            return Err(SequenceError::Operands { step: number, expected, found });
        };
        let layout = Layout::contiguous(*operand.layout.shape());
        let memory = SequenceMemory::Buffer { index, offset: 0 };
        let target = SequenceOperand { memory, dtype: operand.dtype, layout, access: Access::Write };
        buffers.add(number, place, &target)?;
        let source = SequenceOperand { access: Access::Read, ..operand.clone() };
        Ok(Some(LookCopy { copy: [source, target], of_buffers: [of_operand, index] }))
    }

    /// The first of the copied elements that is infinite or NaN, once the copy has run.
    ///
    /// # Errors
    /// Those of [`Operand::slice`].
    ///
    /// # Safety
    ///
    /// * [`Buffers::check`] of the buffers that the copy was made with has accepted `buffers`.
    /// * The host can read the flag, the copy has run, and nothing writes the flag meanwhile.
    pub(super) unsafe fn find(
        &self,
        number: usize,
        buffers: &[Operand],
    ) -> Result<Option<(Vec<usize>, f64)>, SequenceError> {
        let copied = SequenceOperand { access: Access::Read, ..self.copy[1].clone() };
        let mut operand = [Operand::blank()];
        // SAFETY: `new` has added the view to the buffers, and the caller guarantees that these were checked. No slice of the flag exists, because the
        // sequence alone reads it, here and for conditions of blocks.
        let set = unsafe { located(slice::from_ref(&copied), buffers, &mut operand) };
        first_not_finite(&set[0]).map_err(|error| SequenceError::Step { step: number, error })
    }
}

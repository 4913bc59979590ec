//! Looks at what the steps of a sequence on a device have written: each output of floats is copied to the flag, where the host finds infinities and NaN.

use std::slice;

use crate::call::operand::{Access, Operand};
use crate::errors::sequence_error::SequenceError;
use crate::sequence::buffers::{Buffers, located};
use crate::sequence::finite::first_not_finite;
use crate::sequence::step::{SequenceMemory, SequenceOperand, SequenceStep};
use crate::tensor::layout::Layout;

/// A copy of an output to the flag.
#[derive(Debug)]
pub(super) struct Look {
    /// The output, and the view of the flag with the same elements and no gaps.
    pub(super) copy: [SequenceOperand; 2],
    /// The buffers of both.
    pub(super) of_buffers: [usize; 2],
}

impl Look {
    /// A look at the output of step `number`; `None` if it writes no floats. `flag` is the buffer that the host can read.
    ///
    /// # Errors
    /// [`SequenceError::PastBuffer`] if the flag is too small; [`SequenceError::Operands`] if there is none.
    pub(super) fn new(
        number: usize,
        step: &SequenceStep,
        flag: Option<usize>,
        buffers: &mut Buffers,
    ) -> Result<Option<Look>, SequenceError> {
        let Some(output) = step.operands.last().filter(|output| output.access.writes() && !step.work.is_mark()) else {
            return Ok(None);
        };
        let Some(of_output) = output.buffer().filter(|_| output.dtype.is_float() && output.layout.elements() > 0)
        else {
            return Ok(None);
        };
        let Some(index) = flag else {
            let (expected, found) = ("a flag to copy the output of this step to", "none".to_owned());
            return Err(SequenceError::Operands { step: number, expected, found });
        };
        let layout = Layout::contiguous(*output.layout.shape());
        let memory = SequenceMemory::Buffer { index, offset: 0 };
        let target = SequenceOperand { memory, dtype: output.dtype, layout, access: Access::Write };
        buffers.add(number, step.operands.len(), &target)?;
        let source = SequenceOperand { access: Access::Read, ..output.clone() };
        Ok(Some(Look { copy: [source, target], of_buffers: [of_output, index] }))
    }

    /// Looks at the copied elements, once the copy has run.
    ///
    /// # Errors
    /// [`SequenceError::NotFinite`] with the first element that is infinite or NaN.
    ///
    /// # Safety
    ///
    /// * [`Buffers::check`] of the buffers that the look was made with has accepted `buffers`.
    /// * The host can read the flag, the copy has run, and nothing writes the flag meanwhile.
    pub(super) unsafe fn check(&self, number: usize, buffers: &[Operand]) -> Result<(), SequenceError> {
        let copied = SequenceOperand { access: Access::Read, ..self.copy[1].clone() };
        let mut operand = [Operand::blank()];
        // SAFETY: `new` has added the view to the buffers, and the caller guarantees that these were checked. No slice of the flag exists, because the
        // sequence alone reads it, here and for conditions of blocks.
        let set = unsafe { located(slice::from_ref(&copied), buffers, &mut operand) };
        match first_not_finite(&set[0]).map_err(|error| SequenceError::Step { step: number, error })? {
            Some((index, value)) => Err(SequenceError::NotFinite { step: number, index, value }),
            None => Ok(()),
        }
    }
}

//! Calls of kernels with numbers among their inputs: each number becomes an operand over an element on the stack.

use smallvec::SmallVec;

use crate::call::kernel::KernelCall;
use crate::call::op_states::OpStates;
use crate::call::operand::{Access, Operand};
use crate::errors::error::KernelError;
use crate::tensor::dtype::DType;
use crate::tensor::error::OpError;
use crate::tensor::layout::Layout;
use crate::tensor::numbers::{MOST_INPUTS, MOST_NUMBERS, Numbers};
use crate::tensor::params::{Extra, Params};
use crate::tensor::scalar::Scalar;

/// One element of any dtype, at an address that is aligned for all of them.
#[derive(Copy, Clone, Debug)]
pub struct NumberElement(u64);

impl NumberElement {
    /// The element of `dtype` that a fill with this value writes; `None` if the value does not fit.
    pub fn new(value: Scalar, dtype: DType) -> Option<NumberElement> {
        let bits = value.element_bits(dtype)?;
        // The element begins at the address of the word.
        Some(NumberElement(if cfg!(target_endian = "big") { bits << (64 - 8 * dtype.size()) } else { bits }))
    }

    /// Its address.
    pub fn address(&self) -> *const u8 {
        (&raw const self.0).cast()
    }
}

impl KernelCall<'_, '_> {
    /// Runs the code of the kernel. `states` are those of its device; a registered op over tensors needs them. Numbers among the inputs of an elementwise op ([`Extra::Numbers`]) become operands of one element on this
    /// stack: its kernels know tensors alone. A stream that runs its kernels in this address space calls this, and needs to know nothing of numbers.
    ///
    /// # Errors
    ///
    /// Those of the kernel. [`OpError::Numbers`], [`OpError::Value`] and [`KernelError::Operands`] for numbers that do not fit the call.
    #[inline]
    pub fn run(&mut self, states: Option<&OpStates>) -> Result<(), KernelError> {
        match self.params.extra {
            _ if self.kernel.op.is_over_tensors() => {
                (self.kernel.run)(&mut KernelCall { operands: &mut *self.operands, states, ..*self })
            }
            Extra::Numbers(numbers) => self.run_with(numbers),
            _ => (self.kernel.run)(self),
        }
    }

    #[inline(never)]
    fn run_with(&mut self, numbers: Numbers) -> Result<(), KernelError> {
        let (op, dtype) = (self.kernel.op, self.kernel.dtype);
        if !numbers.fit(op) {
            return Err(OpError::Numbers { op }.into());
        }
        let all = op.arity();
        if self.inputs + numbers.len() != all || self.operands.len() != self.inputs + 1 {
            let (inputs, outputs) = (self.inputs + numbers.len(), self.operands.len().saturating_sub(self.inputs));
            return Err(KernelError::Operands { op, inputs, outputs });
        }
        let mut elements = [NumberElement(0); MOST_NUMBERS];
        for (element, (_, value)) in elements.iter_mut().zip(numbers.iter()) {
            *element = NumberElement::new(value, dtype).ok_or(OpError::Value { op, value, dtype })?;
        }
        let mut elements = elements.iter();
        let mut tensors = self.operands.iter();
        let mut operands: SmallVec<[Operand<'_>; MOST_INPUTS + 1]> = SmallVec::new();
        for place in 0..=all {
            if numbers.contains(place) {
                let element = elements.next().unwrap_or_else(|| unreachable!("there is one for each number"));
                // SAFETY: the element outlives the call of the kernel, which keeps no operand, and nothing writes it. It has the size of any element, is aligned for it,
                // and `NumberElement::new` has made it one of this dtype. The host can access it.
                operands
                    .push(unsafe { Operand::new(element.address().cast_mut(), dtype, Layout::SCALAR, Access::Read) });
            } else {
                let tensor = tensors.next().unwrap_or_else(|| unreachable!("the operands were counted"));
                // SAFETY: the original is not used until the kernel, which cannot keep the copy, has returned.
                operands.push(unsafe { tensor.duplicate() });
            }
        }
        let params = &Params::default();
        (self.kernel.run)(&mut KernelCall::new(self.kernel, &mut operands, all, params))
    }
}

#[cfg(test)]
#[path = "with_numbers_tests.rs"]
mod tests;

//! Eager calls that are a few copies, fills or ops, in one submission.

use streamvm_ep::Scalar;

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl Tensor {
    /// Copies the elements of this tensor into a new one, as often on each axis as `counts` says: see [`InstructionsBuilder::repeat`].
    ///
    /// # Errors
    /// There is not one count for each axis, or the engine refused the copies.
    #[track_caller]
    pub fn repeat(&self, counts: &[usize]) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let repeated = builder.repeat(self, counts)?;
        self.submit(builder)?;
        Ok(repeated)
    }

    /// Copies the elements of this tensor into a new one, moved by `shift` places around `axis`: see [`InstructionsBuilder::roll`].
    ///
    /// # Errors
    /// There is no such axis, or the engine refused the copies.
    #[track_caller]
    pub fn roll(&self, shift: i64, axis: usize) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let rolled = builder.roll(self, shift, axis)?;
        self.submit(builder)?;
        Ok(rolled)
    }

    /// This tensor with `value` where `mask` is true: see [`InstructionsBuilder::masked_fill`].
    ///
    /// # Errors
    /// The value does not fit the dtype; those of [`Tensor::op`].
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let filled = builder.masked_fill(self, mask, value)?;
        self.submit(builder)?;
        Ok(filled)
    }
}

//! Attention of tensors of an engine.

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl Tensor {
    /// Scaled dot-product attention of these queries, `[.., m, d]`, to keys and values: see [`InstructionsBuilder::attention`]. All is one submission.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::attention`] and [`Tensor::op`].
    #[track_caller]
    pub fn attention(&self, keys: &Tensor, values: &Tensor, mask: Option<&Tensor>) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let output = builder.attention(self, keys, values, mask)?;
        self.submit(builder)?;
        Ok(output)
    }
}

//! Group norm of tensors of an engine.

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl Tensor {
    /// Group norm of this tensor, `[n, c, ..]`: see [`InstructionsBuilder::group_norm`]. All is one submission.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::group_norm`] and [`Tensor::op`].
    #[track_caller]
    pub fn group_norm(&self, groups: usize, weight: &Tensor, bias: &Tensor, epsilon: f64) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let output = builder.group_norm(self, groups, weight, bias, epsilon)?;
        self.submit(builder)?;
        Ok(output)
    }
}

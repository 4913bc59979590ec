//! Dropout of tensors of an engine.

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::builder::random::Generator;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl Tensor {
    /// Dropout: this tensor times factors, and the factors, each 0 with probability `p`, else `1 / (1 - p)`. See [`InstructionsBuilder::dropout`]. All is
    /// one submission.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::dropout`] and [`Tensor::op`].
    #[track_caller]
    pub fn dropout(&self, generator: &Generator, p: f64) -> Result<(Tensor, Tensor), Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let found = builder.dropout(self, generator, p)?;
        self.submit(builder)?;
        Ok(found)
    }
}

//! Eager calls that sort, each two ops in one submission.

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl Tensor {
    /// The elements along `axis` in sorted order: see [`InstructionsBuilder::sort`]. [`Tensor::argsort`] gives their indices.
    ///
    /// # Errors
    /// There is no such axis; those of [`Tensor::op`].
    #[track_caller]
    pub fn sort(&self, axis: usize, descending: bool) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let sorted = builder.sort(self, axis, descending)?;
        self.submit(builder)?;
        Ok(sorted)
    }

    /// The `count` largest elements along `axis`, or the smallest, and their indices: see [`InstructionsBuilder::topk`]. [`Tensor::argtopk`] gives the indices
    /// alone.
    ///
    /// # Errors
    /// There is no such axis, or it has fewer elements than `count`; those of [`Tensor::op`].
    #[track_caller]
    pub fn topk(&self, count: usize, axis: usize, largest: bool) -> Result<(Tensor, Tensor), Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let found = builder.topk(self, count, axis, largest)?;
        self.submit(builder)?;
        Ok(found)
    }
}

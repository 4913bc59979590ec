//! Sorted tensors, which are made of the places of the elements in sorted order and a take of these elements.

use streamvm_ep::{Axes, Op, Params};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::tensor::handle::Tensor;

impl InstructionsBuilder {
    /// Returns a new tensor with the elements of `x` along `axis` in sorted order: smallest first, or largest first if `descending`. Equal elements keep their
    /// order either way. Zeros of both signs are equal; a NaN is larger than every number, and NaNs are equal. The dtype and the shape are those of `x`.
    ///
    /// These are [`Op::ArgSort`] and [`Op::TakeAlongAxis`]. The places, 8 bytes for each element, take memory meanwhile.
    ///
    /// # Errors
    /// There is no such axis; those of [`op`](InstructionsBuilder::op).
    #[track_caller]
    pub fn sort(&mut self, x: &Tensor, axis: usize, descending: bool) -> Result<Tensor, BuildError> {
        Ok(self.taken(x, Op::ArgSort, Params::sorted(Axes::new(&[axis])?, descending))?.0)
    }

    /// Returns the `count` largest elements of `x` along `axis`, largest first, or the smallest, smallest first, and their places, as i64. These are the first
    /// `count` elements and places of a [`sort`](InstructionsBuilder::sort) and an [`argsort`](InstructionsBuilder::argsort), descending if the largest are
    /// asked for. So equal elements keep their order, and a NaN is larger than every number.
    ///
    /// These are [`Op::ArgTopK`] and [`Op::TakeAlongAxis`].
    ///
    /// # Errors
    /// There is no such axis, or it has fewer elements than `count`; those of [`op`](InstructionsBuilder::op).
    #[track_caller]
    pub fn topk(
        &mut self,
        x: &Tensor,
        count: usize,
        axis: usize,
        largest: bool,
    ) -> Result<(Tensor, Tensor), BuildError> {
        self.taken(x, Op::ArgTopK, Params::top(Axes::new(&[axis])?, count, largest))
    }

    /// The elements of `x` at the places that `op` gives along an axis, and the places.
    #[track_caller]
    fn taken(&mut self, x: &Tensor, op: Op, params: Params) -> Result<(Tensor, Tensor), BuildError> {
        let mut steps = self.list_of_its_own();
        let places = steps.op(op, &[x], params)?;
        let elements = steps.op(Op::TakeAlongAxis, &[x, &places], Params::over(params.axes))?;
        self.list.append(steps.finish());
        Ok((elements, places))
    }
}

//! Sorted tensors, which are made of the indices of the elements in sorted order and a take of these elements.

use streamvm_ep::{Axes, Op, Params};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl InstructionsBuilder {
    /// Returns a new tensor with the elements of `x` along `axis` in sorted order: smallest first, or largest first if `descending`. Equal elements keep their
    /// order either way. Zeros of both signs are equal; a NaN is larger than every number, and NaNs are equal. The dtype and the shape are those of `x`.
    ///
    /// These are [`Op::ArgSort`] and [`Op::TakeAlongAxis`]. The indices, 8 bytes for each element, take memory meanwhile. On a CPU each thread that sorts rows
    /// also takes memory for the keys of one row: 8 bytes for each element of the row, or 16 for a dtype of 8 bytes or a row of more than 2^32 - 1 elements. For
    /// rows of 65,536 elements or more it takes two to three times that; if there are fewer than 8 such rows, all threads together take it once, because they sort
    /// one row after the other.
    ///
    /// # Errors
    /// There is no such axis; those of [`op`](InstructionsBuilder::op).
    #[track_caller]
    pub fn sort(&mut self, x: &Tensor, axis: usize, descending: bool) -> Result<Tensor, Error> {
        let params = |axes| Params::sorted(axes, descending);
        Ok(self.taken(x, Op::ArgSort, axis, params).map_err(|error| error.in_call("sort"))?.0)
    }

    /// Returns the `count` largest elements of `x` along `axis`, largest first, or the smallest, smallest first, and their indices, as i64. These are the first
    /// `count` elements and indices of a [`sort`](InstructionsBuilder::sort) and an [`argsort`](InstructionsBuilder::argsort), descending if the largest are
    /// asked for. So equal elements keep their order, and a NaN is larger than every number.
    ///
    /// These are [`Op::ArgTopK`] and [`Op::TakeAlongAxis`]. On a CPU the keys of whole rows take memory, as in a [`sort`](InstructionsBuilder::sort).
    ///
    /// # Errors
    /// There is no such axis, or it has fewer elements than `count`; those of [`op`](InstructionsBuilder::op).
    #[track_caller]
    pub fn topk(&mut self, x: &Tensor, count: usize, axis: usize, largest: bool) -> Result<(Tensor, Tensor), Error> {
        let params = |axes| Params::top(axes, count, largest);
        self.taken(x, Op::ArgTopK, axis, params).map_err(|error| error.in_call("topk"))
    }

    /// The elements of `x` at the indices that `op` gives along an axis, and the indices.
    #[track_caller]
    fn taken(
        &mut self,
        x: &Tensor,
        op: Op,
        axis: usize,
        params: impl FnOnce(Axes) -> Params,
    ) -> Result<(Tensor, Tensor), Error> {
        let params = params(Axes::new(&[axis])?);
        let mut steps = self.list_of_its_own();
        let indices = steps.op(op, &[x], params)?;
        let elements = steps.op(Op::TakeAlongAxis, &[x, &indices], Params::over(params.axes))?;
        self.list.append(steps.finish());
        Ok((elements, indices))
    }
}

//! Joining tensors: each is copied into a part of a new one.

use streamvm_ep::{MemoryKind, Shape};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl InstructionsBuilder {
    /// Copies tensors one after the other along `axis` into a new tensor, at the place of the first. Each copy is an instruction of
    /// its own; copies on different streams run side by side.
    ///
    /// # Errors
    /// [`BuildError::NothingToJoin`] without a tensor, [`BuildError::Join`] if dtypes, or sizes on other axes, differ; there is no such
    /// axis; those of [`copy_into`](InstructionsBuilder::copy_into).
    #[track_caller]
    pub fn cat(&mut self, tensors: &[&Tensor], axis: usize) -> Result<Tensor, Error> {
        self.joined(tensors, axis).map_err(|error| error.in_call("cat"))
    }

    #[track_caller]
    fn joined(&mut self, tensors: &[&Tensor], axis: usize) -> Result<Tensor, Error> {
        let first = tensors.first().ok_or(BuildError::NothingToJoin)?;
        let mut dims = first.shape().dims().to_vec();
        first.shape().check_axis(axis)?;
        dims[axis] = 0;
        for (index, tensor) in tensors.iter().enumerate() {
            let shape = tensor.shape();
            let other_axes = |shape: &Shape| {
                shape.dims().iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, dim)| *dim).collect()
            };
            let (expected, found): (Vec<usize>, Vec<usize>) = (other_axes(&first.shape()), other_axes(&shape));
            let is_refused = tensor.dtype() != first.dtype() && !self.options.transfers;
            if shape.rank() != dims.len() || expected != found || is_refused {
                return Err(BuildError::Join {
                    axis,
                    index,
                    expected: Box::new(first.shape()),
                    found: Box::new(shape),
                    expected_dtype: first.dtype(),
                    found_dtype: tensor.dtype(),
                }
                .into());
            }
            dims[axis] = dims[axis].saturating_add(shape.dims()[axis]);
        }
        let joined = Tensor::unbound_of(
            first.resource().engine(),
            first.place(),
            MemoryKind::Device,
            first.dtype(),
            &Shape::new(&dims)?,
        );
        let mut copies = self.list_of_its_own();
        let mut start = 0;
        for tensor in tensors {
            let end = start + tensor.shape().dims()[axis];
            copies.copy_into(tensor, &joined.slice(axis, start..end)?)?;
            start = end;
        }
        self.list.append(copies.finish());
        Ok(joined)
    }

    /// Copies tensors of one shape into a new tensor that has one more axis before `axis`, with one index for each tensor.
    ///
    /// # Errors
    /// Those of [`cat`](InstructionsBuilder::cat) and of [`Tensor::unsqueeze`].
    #[track_caller]
    pub fn stack(&mut self, tensors: &[&Tensor], axis: usize) -> Result<Tensor, Error> {
        let mut views = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            views.push(tensor.unsqueeze(axis).map_err(|error| error.in_call("stack"))?);
        }
        self.joined(&views.iter().collect::<Vec<&Tensor>>(), axis).map_err(|error| error.in_call("stack"))
    }
}

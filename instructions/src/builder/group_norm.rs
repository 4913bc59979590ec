//! Group norm (Wu and He, ECCV 2018), made of a layer norm of groups of channels, a product and a sum.

use streamvm_ep::{Op, OpError, Shape};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl InstructionsBuilder {
    /// Returns `(x - mean) / sqrt(variance + epsilon) * weight + bias`, where mean and variance, which divides by the number of elements, are those of
    /// `c / groups` channels of an example. `x` is `[n, c, ..]`; weight and bias have one number for each channel, `[c]`; all have one float dtype. With
    /// one group this is a layer norm of each example, with `c` groups an instance norm.
    ///
    /// It is rounded after the division, the product and the sum. An `x` whose elements lie in another order is copied first.
    ///
    /// # Errors
    /// `x` has no float dtype, or no two axes, or `groups` does not divide its channels; weight or bias has another shape; those of
    /// [`layer_norm`](InstructionsBuilder::layer_norm). The list is unchanged then.
    #[track_caller]
    pub fn group_norm(
        &mut self,
        x: &Tensor,
        groups: usize,
        weight: &Tensor,
        bias: &Tensor,
        epsilon: f64,
    ) -> Result<Tensor, Error> {
        self.normed_by_groups(x, groups, [weight, bias], epsilon).map_err(|error| error.in_call("group_norm"))
    }

    #[track_caller]
    fn normed_by_groups(
        &mut self,
        x: &Tensor,
        groups: usize,
        [weight, bias]: [&Tensor; 2],
        epsilon: f64,
    ) -> Result<Tensor, Error> {
        let device = x.place().device().ok_or(BuildError::OnHost { op: Op::LayerNorm })?;
        if !x.dtype().is_float() {
            let (op, dtype) = (Op::LayerNorm, x.dtype());
            return Err(OpError::DType { op, dtype, available: op.dtypes() }.into());
        }
        let shape = x.shape();
        let &[examples, channels, ref inner @ ..] = shape.dims() else { return Err(refused(&shape, groups).into()) };
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(refused(&shape, groups).into());
        }
        for (what, given) in [("weight", weight), ("bias", bias)] {
            if given.shape().dims() != [channels] {
                return Err(BuildError::PerChannel { what, found: Box::new(given.shape()), channels }.into());
            }
        }
        let length = channels / groups * inner.iter().product::<usize>();
        let mut steps = self.list_of_its_own();
        let rows = match x.try_reshape(&[examples, groups, length])? {
            Some(view) => view,
            None => in_shape(&steps.copy(x, device)?, &[examples, groups, length])?,
        };
        let [one, zero] = [1.0, 0.0].map(|number| steps.full(device, x.dtype(), &[], number));
        let [one, zero] = [one?.broadcast_to(&[length])?, zero?.broadcast_to(&[length])?];
        let normal = in_shape(&steps.layer_norm(&rows, &one, &zero, epsilon)?, shape.dims())?;
        let per_channel =
            |given: &Tensor| (0..inner.len()).try_fold(given.clone(), |view, axis| view.unsqueeze(axis + 1));
        let scaled = steps.mul(&normal, &per_channel(weight)?)?;
        let output = steps.add(&scaled, &per_channel(bias)?)?;
        self.list.append(steps.finish());
        Ok(output)
    }
}

fn refused(found: &Shape, groups: usize) -> BuildError {
    BuildError::Groups { found: Box::new(*found), groups }
}

/// A new tensor, which has no gaps, in another shape.
#[track_caller]
fn in_shape(tensor: &Tensor, dims: &[usize]) -> Result<Tensor, Error> {
    Ok(tensor.try_reshape(dims)?.unwrap_or_else(|| unreachable!("a new tensor has its elements in order")))
}

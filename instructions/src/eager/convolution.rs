//! Convolutions along one axis: views of those along two.

use streamvm_ep::Convolution;

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

/// The convolution of an image whose only line is the input. Its height takes no part.
fn of_one_line(by: Convolution) -> Convolution {
    let Convolution { stride, padding, dilation, groups } = by;
    Convolution { stride: [1, stride[1]], padding: [0, padding[1]], dilation: [1, dilation[1]], groups }
}

impl Tensor {
    /// The convolution of `[n, c, length]` by a weight `[o, c / groups, window]`: `[n, o, positions]`. It is [`conv2d`](Tensor::conv2d) of views with a
    /// height of 1. Of the pairs of `by` the second number, that of the width, counts; the first is ignored.
    ///
    /// # Errors
    /// As [`Tensor::op`]; also an input without three axes.
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, by: Convolution) -> Result<Tensor, Error> {
        let output = self.unsqueeze(2)?.conv2d(&weight.unsqueeze(2)?, of_one_line(by))?;
        Ok(output.squeeze(2)?)
    }
}

impl InstructionsBuilder {
    /// As [`Tensor::conv1d`].
    ///
    /// # Errors
    /// As [`InstructionsBuilder::op`]; also an input without three axes.
    #[track_caller]
    pub fn conv1d(&mut self, x: &Tensor, weight: &Tensor, by: Convolution) -> Result<Tensor, BuildError> {
        let output = self.conv2d(&x.unsqueeze(2)?, &weight.unsqueeze(2)?, of_one_line(by))?;
        Ok(output.squeeze(2)?)
    }
}

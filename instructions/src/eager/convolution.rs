//! Convolutions along one axis: views of those along two.

use streamvm_ep::{Convolution, Op, OpError};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

/// The convolution of an image whose only line is the input. Its height takes no part.
fn of_one_line(by: Convolution) -> Convolution {
    let Convolution { stride, padding, dilation, groups } = by;
    Convolution { stride: [1, stride[1]], padding: [0, padding[1]], dilation: [1, dilation[1]], groups }
}

/// The input and the weight of a convolution of images with one line.
#[track_caller]
fn of_images(x: &Tensor, weight: &Tensor) -> Result<[Tensor; 2], Error> {
    let shapes = [x, weight].map(|tensor| tensor.shape());
    if shapes.iter().any(|shape| shape.rank() != 3) {
        // Of the shapes that the caller has given, which those of the views would hide.
        let [input, weight] = shapes.map(Box::new);
        return Err(in_call(OpError::ConvolutionRank { op: Op::Conv2d, input, weight }.into()));
    }
    Ok([x.unsqueeze(2)?, weight.unsqueeze(2)?])
}

fn in_call(error: Error) -> Error {
    error.in_call("conv1d")
}

impl Tensor {
    /// The convolution of `[n, c, length]` by a weight `[o, c / groups, window]`: `[n, o, positions]`. It is [`conv2d`](Tensor::conv2d) of views with a
    /// height of 1. Of the pairs of `by` the second number, that of the width, counts; the first is ignored.
    ///
    /// # Errors
    /// As [`Tensor::op`]; [`OpError::ConvolutionRank`], with the shapes as given, unless the input and the weight have three axes.
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, by: Convolution) -> Result<Tensor, Error> {
        let [x, weight] = of_images(self, weight)?;
        x.conv2d(&weight, of_one_line(by)).map_err(in_call)?.squeeze(2)
    }
}

impl InstructionsBuilder {
    /// As [`Tensor::conv1d`].
    ///
    /// # Errors
    /// As [`InstructionsBuilder::op`]; [`OpError::ConvolutionRank`], with the shapes as given, unless the input and the weight have three axes.
    #[track_caller]
    pub fn conv1d(&mut self, x: &Tensor, weight: &Tensor, by: Convolution) -> Result<Tensor, Error> {
        let [x, weight] = of_images(x, weight)?;
        self.conv2d(&x, &weight, of_one_line(by)).map_err(in_call)?.squeeze(2)
    }
}

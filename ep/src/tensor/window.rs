//! Windows that move over the two innermost axes of `[n, c, h, w]`: the parameters of convolutions and poolings, and the sizes that follow
//! from them.
//!
//! A window visits positions in steps of its stride, the first one `padding` elements before the input. It has as many positions as fit into the
//! input with its padding on both sides.

use std::ops::Range;

use crate::tensor::error::{OpError, ShapeError};
use crate::tensor::op::Op;
use crate::tensor::shape::Shape;

/// How the weight of a convolution moves over its input. A pair is one number for the height and one for the width.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// Elements of the input from one position to the next, at least 1.
    pub stride: [u16; 2],
    /// Zeros on both sides of the input.
    pub padding: [u16; 2],
    /// Elements of the input from one element of the window to the next, at least 1.
    pub dilation: [u16; 2],
    /// Equal parts, at least 1, into which the channels of the input and those of the output are divided: a part of the output is computed from
    /// the part of the input with the same number.
    pub groups: u16,
}

impl Default for Convolution {
    /// Steps of 1, no padding, no gaps in the window, one group.
    fn default() -> Convolution {
        Convolution { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

/// How the window of a pooling moves over its input. A pair is one number for the height and one for the width.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// The size of the window, at least 1.
    pub window: [u16; 2],
    /// Elements of the input from one position to the next, at least 1.
    pub stride: [u16; 2],
    /// Elements outside of the input on both sides that windows may reach, fewer than the window has. They are zeros for an average, and take no part
    /// in a maximum.
    pub padding: [u16; 2],
}

impl Pooling {
    /// Square windows of this side, one beside the other, without padding.
    pub const fn square(side: u16) -> Pooling {
        Pooling { window: [side; 2], stride: [side; 2], padding: [0; 2] }
    }
}

/// The longest axis that a window moves over, so that kernels can count its elements, with any padding, by 32 bits.
const LONGEST: usize = i32::MAX as usize - 2 * u16::MAX as usize;

/// One of the two axes that a window moves over.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WindowAxis {
    /// Elements of the input.
    pub input: usize,
    /// Elements of the window.
    pub window: usize,
    /// Elements of the output.
    pub output: usize,
    /// Elements of the input from a position of the window to the next.
    pub stride: usize,
    /// Elements beside the input, at each of its ends.
    pub padding: usize,
    /// Elements of the input from an element under the window to the next.
    pub dilation: usize,
}

impl WindowAxis {
    fn new(op: Op, input: usize, window: usize, [stride, padding, dilation]: [u16; 3]) -> Result<WindowAxis, OpError> {
        let [stride, padding, dilation] = [stride, padding, dilation].map(usize::from);
        for (what, found) in [("stride", stride), ("dilation", dilation), ("window", window)] {
            if found == 0 {
                return Err(OpError::WindowOfNothing { op, what });
            }
        }
        if input > LONGEST || window > LONGEST {
            return Err(OpError::WindowAxis { op, found: input.max(window), most: LONGEST });
        }
        let (padded, reach) = (input + 2 * padding, (window - 1).saturating_mul(dilation).saturating_add(1));
        if reach > padded {
            return Err(OpError::WindowReach { op, input, padding, reach });
        }
        Ok(WindowAxis { input, window, output: (padded - reach) / stride + 1, stride, padding, dilation })
    }

    /// The element of the input under element `element` of the window at position `position`; none in the padding.
    #[inline]
    pub fn input_at(&self, position: usize, element: usize) -> Option<usize> {
        let padded = position * self.stride + element * self.dilation;
        padded.checked_sub(self.padding).filter(|&input| input < self.input)
    }

    /// The positions at which element `element` of the window is over the input.
    #[inline]
    pub fn positions_inside(&self, element: usize) -> Range<usize> {
        let shift = element * self.dilation;
        let start = self.padding.saturating_sub(shift).div_ceil(self.stride).min(self.output);
        let end = (self.input + self.padding).saturating_sub(shift).div_ceil(self.stride).min(self.output);
        start..end.max(start)
    }

    /// The elements of the input under a window without gaps at position `position`.
    #[inline]
    pub fn inputs_under(&self, position: usize) -> Range<usize> {
        let first = position * self.stride;
        let end = (first + self.window).saturating_sub(self.padding).min(self.input);
        first.saturating_sub(self.padding).min(end)..end
    }

    /// The positions at which a window without gaps is over element `input` of the input.
    #[inline]
    pub fn positions_over(&self, input: usize) -> Range<usize> {
        let padded = input + self.padding;
        let end = (padded / self.stride + 1).min(self.output);
        (padded + 1).saturating_sub(self.window).div_ceil(self.stride).min(end)..end
    }
}

/// The sizes of a convolution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConvolutionForm {
    /// How many images.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of the input in each group.
    pub channels: usize,
    /// Channels of the output in each group.
    pub outputs: usize,
    /// Height and width.
    pub axes: [WindowAxis; 2],
}

impl ConvolutionForm {
    /// The sizes of a convolution of `input` by `weight`.
    ///
    /// # Errors
    ///
    /// The two have not four axes each, channels that do not fit, or a window that does not fit.
    pub fn of(op: Op, input: &Shape, weight: &Shape, by: &Convolution) -> Result<ConvolutionForm, OpError> {
        let (&[batch, all_channels, height, width], &[all_outputs, channels, high, wide]) =
            (input.dims(), weight.dims())
        else {
            return Err(OpError::ConvolutionRank { op, input: Box::new(*input), weight: Box::new(*weight) });
        };
        let groups = usize::from(by.groups);
        if groups == 0 {
            return Err(OpError::WindowOfNothing { op, what: "number of groups" });
        }
        if channels.checked_mul(groups) != Some(all_channels) || all_outputs % groups != 0 {
            let (input, weight) = (Box::new(*input), Box::new(*weight));
            return Err(OpError::ConvolutionChannels { op, input, weight, groups });
        }
        let axis = |axis: usize, input, window| {
            WindowAxis::new(op, input, window, [by.stride[axis], by.padding[axis], by.dilation[axis]])
        };
        let axes = [axis(0, height, high)?, axis(1, width, wide)?];
        Ok(ConvolutionForm { batch, groups, channels, outputs: all_outputs / groups, axes })
    }

    /// The shape of the output.
    ///
    /// # Errors
    ///
    /// It has more elements than fit an address.
    pub fn output(&self) -> Result<Shape, ShapeError> {
        Shape::new(&[self.batch, self.groups * self.outputs, self.axes[0].output, self.axes[1].output])
    }

    /// Elements of the window: products of each element of the output in each channel.
    pub fn window(&self) -> usize {
        self.axes[0].window * self.axes[1].window
    }

    /// Positions of the window: elements of the output in each channel.
    pub fn positions(&self) -> usize {
        self.axes[0].output * self.axes[1].output
    }
}

/// Height and width of a pooling of `input`.
///
/// # Errors
///
/// The input has not four axes, or a window that does not fit.
pub fn pooling_axes(op: Op, input: &Shape, by: &Pooling) -> Result<[WindowAxis; 2], OpError> {
    let &[_, _, height, width] = input.dims() else {
        return Err(OpError::PoolingRank { op, input: Box::new(*input) });
    };
    let axis = |axis: usize, size| {
        let (window, padding) = (usize::from(by.window[axis]), by.padding[axis]);
        let without_element = OpError::PoolingPadding { op, window, padding: padding.into(), input: size };
        // Before the window is found not to fit into an empty input, for which no window would do.
        if size == 0 {
            return Err(without_element);
        }
        let found = WindowAxis::new(op, size, window, [by.stride[axis], padding, 1])?;
        if usize::from(padding) >= window { Err(without_element) } else { Ok(found) }
    };
    Ok([axis(0, height)?, axis(1, width)?])
}

/// The shape of the output of a pooling of `input`.
pub(crate) fn pooled(op: Op, input: &Shape, by: &Pooling) -> Result<Shape, OpError> {
    let axes = pooling_axes(op, input, by)?;
    let dims = input.dims();
    Shape::new(&[dims[0], dims[1], axes[0].output, axes[1].output]).map_err(|source| OpError::Shape { op, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The element of the input by the definition, with signs.
    fn under(axis: &WindowAxis, position: usize, element: usize) -> Option<usize> {
        let at = (position * axis.stride + element * axis.dilation) as i64 - axis.padding as i64;
        (0..axis.input as i64).contains(&at).then_some(at as usize)
    }

    #[test]
    fn ranges_are_those_of_the_definition() {
        for (input, window, rest) in
            (0..7).flat_map(|input| (1..5).flat_map(move |window| (0..36).map(move |rest: u16| (input, window, rest))))
        {
            let [stride, padding, dilation] = [rest % 3 + 1, rest / 3 % 4, rest / 12 + 1];
            let Ok(axis) = WindowAxis::new(Op::Conv2d, input, window, [stride, padding, dilation]) else { continue };
            // One more position would reach past the padding.
            let reach = |position: usize| position * axis.stride + (window - 1) * axis.dilation;
            let end = input + 2 * usize::from(padding);
            assert!(reach(axis.output - 1) < end && reach(axis.output) >= end, "{axis:?}");
            for element in 0..window {
                let inside = axis.positions_inside(element);
                for position in 0..axis.output {
                    assert_eq!(axis.input_at(position, element), under(&axis, position, element), "{axis:?}");
                    assert_eq!(inside.contains(&position), under(&axis, position, element).is_some(), "{axis:?}");
                }
            }
            if dilation == 1 {
                for position in 0..axis.output {
                    let found: Vec<usize> = axis.inputs_under(position).collect();
                    let expected: Vec<usize> = (0..window).filter_map(|at| under(&axis, position, at)).collect();
                    assert_eq!(found, expected, "{axis:?}");
                    for element in 0..input {
                        let is_over = axis.positions_over(element).contains(&position);
                        assert_eq!(is_over, expected.contains(&element), "{axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_that_no_window_fits_are_refused() {
        let axis = |input, window, by| WindowAxis::new(Op::Conv2d, input, window, by);
        assert!(matches!(axis(4, 0, [1, 0, 1]), Err(OpError::WindowOfNothing { what: "window", .. })));
        assert!(matches!(axis(4, 1, [0, 0, 1]), Err(OpError::WindowOfNothing { what: "stride", .. })));
        assert!(matches!(axis(4, 1, [1, 0, 0]), Err(OpError::WindowOfNothing { what: "dilation", .. })));
        assert!(matches!(axis(4, 3, [1, 0, 2]), Err(OpError::WindowReach { reach: 5, .. })));
        assert!(axis(3, 3, [1, 1, 2]).is_ok());
        assert!(matches!(axis(usize::MAX / 16, 1, [1, 0, 1]), Err(OpError::WindowAxis { .. })));
        assert!(matches!(axis(4, LONGEST, [1, 0, u16::MAX]), Err(OpError::WindowReach { .. })));
        let empty = Shape::new(&[1, 1, 4, 0]).unwrap();
        let refused = pooling_axes(Op::MaxPool2d, &empty, &Pooling::square(2));
        assert!(matches!(refused, Err(OpError::PoolingPadding { input: 0, padding: 0, .. })), "{refused:?}");
    }
}

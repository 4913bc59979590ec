//! Convolutions, poolings and their gradients by their definitions: each product of an element of the input and one of the weight, or each
//! element under a window, adds to the outputs that it is a part of.

use streamvm_ep::{Convolution, Extra, Op, Params, Pooling};

use super::{Dense, Value, exact_sum, indices};

/// A call of an op that moves a window: shapes of its inputs and its parameters, picked by a number. Small ones, with every number of groups, stride,
/// padding and dilation in some.
#[allow(dead_code, reason = "not every suite that takes this file draws such calls")]
pub(crate) fn window_call(op: Op, pick: u64) -> (Vec<Vec<usize>>, Extra) {
    let mut left = pick.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
    let mut below = |end: usize| {
        let found = left % end as u64;
        left /= end as u64;
        found as usize
    };
    let is_pooling = matches!(op, Op::MaxPool2d | Op::AvgPool2d | Op::MaxPool2dBackward | Op::AvgPool2dBackward);
    let batch = [1, 2, 3, 0][below(12) % 7 % 4];
    let mut axis = || {
        let (window, stride, gaps) = (1 + below(3), 1 + below(3), below(4) / 3);
        let padding = below(if gaps > 0 && !is_pooling { 2 } else { window });
        (window, stride, padding, 1 + gaps, below(5))
    };
    let axes = [axis(), axis()];
    let pair = |of: fn(&(usize, usize, usize, usize, usize)) -> usize| [of(&axes[0]) as u16, of(&axes[1]) as u16];
    // The input has as many elements as the window reaches over, and `more`.
    let sizes = axes.map(|(window, _, padding, dilation, more)| {
        let reach = if is_pooling { window } else { (window - 1) * dilation + 1 };
        (reach + more).saturating_sub(2 * padding).max(1)
    });
    let output = |axis: usize| {
        let (window, stride, padding, dilation, _) = axes[axis];
        let reach = if is_pooling { window } else { (window - 1) * dilation + 1 };
        (sizes[axis] + 2 * padding - reach) / stride + 1
    };
    let (stride, padding) = (pair(|axis| axis.1), pair(|axis| axis.2));
    if is_pooling {
        let by = Pooling { window: pair(|axis| axis.0), stride, padding };
        let channels = 1 + below(3);
        let shapes = [vec![batch, channels, sizes[0], sizes[1]], vec![batch, channels, output(0), output(1)]];
        return (shapes[..op.arity()].to_vec(), Extra::Pooling(by));
    }
    let (groups, channels, outputs) = ([1, 1, 2, 3][below(4)], [1, 2, 3, 0][below(13) % 4], 1 + below(3));
    let by = Convolution { stride, padding, dilation: pair(|axis| axis.3), groups: groups as u16 };
    let shapes = [
        vec![batch, groups * channels, sizes[0], sizes[1]],
        vec![groups * outputs, channels, axes[0].0, axes[1].0],
        vec![batch, groups * outputs, output(0), output(1)],
    ];
    (shapes[..op.arity()].to_vec(), Extra::Convolution(by))
}

/// Places of a window on one axis: of the output, of the window and of the input, as far as they are inside of it.
fn places(input: usize, window: usize, output: usize, [stride, padding, dilation]: [u16; 3]) -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    for position in 0..output {
        for element in 0..window {
            let at = (position * usize::from(stride) + element * usize::from(dilation)) as i64 - i64::from(padding);
            if (0..input as i64).contains(&at) {
                all.push([position, element, at as usize]);
            }
        }
    }
    all
}

/// The terms of the sum that each element of an output is.
struct Terms {
    dims: Vec<usize>,
    terms: Vec<Vec<f64>>,
}

impl Terms {
    fn new(dims: &[usize]) -> Terms {
        Terms { dims: dims.to_vec(), terms: vec![Vec::new(); dims.iter().product()] }
    }

    fn add(&mut self, at: [usize; 4], term: f64) {
        let place = at.iter().zip(&self.dims).fold(0, |place, (at, size)| place * size + at);
        self.terms[place].push(term);
    }

    fn sums(self, of: &Dense) -> Dense {
        let values = self.terms.into_iter().map(|terms| Value::Float(exact_sum(terms.into_iter()))).collect();
        Dense { dtype: of.dtype, dims: self.dims, values }
    }
}

fn positions(size: usize, window: usize, [stride, padding, dilation]: [u16; 3]) -> usize {
    (size + 2 * usize::from(padding) - (window - 1) * usize::from(dilation) - 1) / usize::from(stride) + 1
}

pub(crate) fn evaluate(op: Op, inputs: &[Dense], params: &Params) -> Dense {
    match params.extra {
        Extra::Convolution(by) => convolution(op, inputs, by),
        Extra::Pooling(by) => pooling(op, inputs, by),
        other => panic!("{op} of {other:?}"),
    }
}

fn convolution(op: Op, inputs: &[Dense], by: Convolution) -> Dense {
    let (x, weight) = (&inputs[0], &inputs[1]);
    let moved = |axis: usize| [by.stride[axis], by.padding[axis], by.dilation[axis]];
    let output = |axis: usize| positions(x.dims[2 + axis], weight.dims[2 + axis], moved(axis));
    let dims = [x.dims[0], weight.dims[0], output(0), output(1)];
    let all = |axis: usize| places(x.dims[2 + axis], weight.dims[2 + axis], dims[2 + axis], moved(axis));
    let mut terms = Terms::new(match op {
        Op::Conv2d => &dims,
        Op::Conv2dBackwardInput => &x.dims,
        _ => &weight.dims,
    });
    let of_group = weight.dims[0] / usize::from(by.groups);
    for outer in indices(&[dims[0], dims[1], weight.dims[1]]) {
        let (image, output, channel) = (outer[0], outer[1], outer[2]);
        let of_all = output / of_group * weight.dims[1] + channel;
        for [row, high, y] in all(0) {
            for [column, wide, x_at] in all(1) {
                let at = [[image, of_all, y, x_at], [output, channel, high, wide], [image, output, row, column]];
                let value = |input: usize| inputs[input].at(&at[input]).float();
                match op {
                    Op::Conv2d => terms.add(at[2], value(0) * value(1)),
                    Op::Conv2dBackwardInput => terms.add(at[0], value(1) * value(2)),
                    _ => terms.add(at[1], value(0) * value(2)),
                }
            }
        }
    }
    terms.sums(x)
}

fn pooling(op: Op, inputs: &[Dense], by: Pooling) -> Dense {
    let x = &inputs[0];
    let moved = |axis: usize| [by.stride[axis], by.padding[axis], 1];
    let window = by.window.map(usize::from);
    let output = |axis: usize| positions(x.dims[2 + axis], window[axis], moved(axis));
    let dims = [x.dims[0], x.dims[1], output(0), output(1)];
    let all = |axis: usize, position: usize| -> Vec<usize> {
        let places = places(x.dims[2 + axis], window[axis], dims[2 + axis], moved(axis));
        places.into_iter().filter(|place| place[0] == position).map(|place| place[2]).collect()
    };
    let elements = (window[0] * window[1]) as f64;
    let mut terms = Terms::new(if op.arity() == 1 { &dims } else { &x.dims });
    for index in indices(&dims) {
        let at = [index[0], index[1], index[2], index[3]];
        let under: Vec<[usize; 4]> = all(0, at[2])
            .into_iter()
            .flat_map(|y| all(1, at[3]).into_iter().map(move |x| [at[0], at[1], y, x]))
            .collect();
        let value = |at: &[usize; 4]| x.at(at).float();
        let first_largest = || {
            let nan = under.iter().find(|at| value(at).is_nan());
            let largest = || under.iter().find(|at| under.iter().all(|other| value(at) >= value(other)));
            *nan.or_else(largest).expect("each window has an element")
        };
        match op {
            Op::MaxPool2d => terms.add(at, value(&first_largest())),
            Op::AvgPool2d => under.iter().for_each(|from| terms.add(at, value(from) / elements)),
            Op::MaxPool2dBackward => terms.add(first_largest(), inputs[1].at(&at).float()),
            _ => under.iter().for_each(|to| terms.add(*to, inputs[1].at(&at).float() / elements)),
        }
    }
    terms.sums(x)
}

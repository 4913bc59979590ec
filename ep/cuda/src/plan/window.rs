//! Launches of convolutions, poolings and their gradients: a thread for each element of the output. The outer axes are the four of the output,
//! unmerged, because a thread computes places from each of them.

use streamvm_ep::backend::{ConvolutionForm, pooling_axes};
use streamvm_ep::{Convolution, KernelError, Op, Operand, Params};

use crate::plan::kernel_name::KernelName;
use crate::plan::{BLOCK, Launch, blank, launch};

/// The launch of a convolution or a gradient of one, of these operands, which the caller has checked.
pub(crate) fn convolution(
    kernel: KernelName,
    op: Op,
    operands: &[&Operand],
    params: &Params,
) -> Result<Option<Launch>, KernelError> {
    let by = params.checked_convolution(op)?;
    let [x, weight] = [0, 1].map(|operand| operands[operand].layout().shape());
    let form = ConvolutionForm::of(op, x, weight, by)?;
    let [inputs, windows, outputs] =
        [form.axes.map(|axis| axis.input), form.axes.map(|axis| axis.window), form.axes.map(|axis| axis.output)];
    let (first, one, other) = match op {
        Op::Conv2d => (form.channels, windows, inputs),
        Op::Conv2dBackwardInput => (form.outputs, windows, outputs),
        _ => (form.batch, outputs, inputs),
    };
    let inner = [first, one[0], one[1], other[0], other[1]];
    Ok(over_output(kernel, operands, &inner, pack(by)))
}

/// The launch of a pooling or a gradient of one, of these operands, which the caller has checked.
pub(crate) fn pooling(
    kernel: KernelName,
    op: Op,
    operands: &[&Operand],
    params: &Params,
) -> Result<Option<Launch>, KernelError> {
    let by = params.checked_pooling(op)?;
    let axes = pooling_axes(op, operands[0].layout().shape(), by)?;
    let windows = axes.map(|axis| axis.window);
    let others = match op {
        Op::MaxPool2d | Op::AvgPool2d => axes.map(|axis| axis.input),
        _ => axes.map(|axis| axis.output),
    };
    let inner = [windows[0], windows[1], others[0], others[1]];
    let moved = Convolution { stride: by.stride, padding: by.padding, ..Convolution::default() };
    Ok(over_output(kernel, operands, &inner, pack(&moved)))
}

/// Stride and padding, and dilation and groups, in 16 bits each, as `window.cu` reads them.
fn pack(by: &Convolution) -> [u64; 2] {
    let word = |parts: [u16; 4]| (0..4).fold(0, |word, part| word | u64::from(parts[part]) << (16 * part));
    let ([s0, s1], [p0, p1], [d0, d1]) = (by.stride, by.padding, by.dilation);
    [word([s0, s1, p0, p1]), word([d0, d1, by.groups, 0])]
}

fn over_output(
    kernel: KernelName,
    operands: &[&Operand],
    inner: &[usize],
    [value, counter]: [u64; 2],
) -> Option<Launch> {
    let out = operands[operands.len() - 1].layout();
    if out.elements() == 0 {
        return None;
    }
    let mut arguments = blank();
    for (view, operand) in operands.iter().enumerate() {
        arguments.views[view].base = operand.ptr().addr() as u64;
        for (axis, &stride) in operand.layout().strides().iter().enumerate() {
            arguments.views[view].strides[axis] = stride as i64;
        }
    }
    for (axis, &size) in out.shape().dims().iter().enumerate() {
        arguments.shape[axis] = size as i64;
    }
    for (axis, &size) in inner.iter().enumerate() {
        arguments.inner[axis] = size as i64;
    }
    (arguments.rank, arguments.inner_rank) = (4, inner.len() as u32);
    arguments.elements = out.elements() as u64;
    (arguments.value, arguments.counter) = (value, counter);
    Some(launch(kernel, out.elements().div_ceil(BLOCK as usize), BLOCK, 0, arguments))
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{Access, DType, Layout, Pooling, Shape};

    use super::*;

    fn operand(dims: &[usize]) -> Operand<'static> {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        // SAFETY: a plan reads no element.
        unsafe { Operand::new(std::ptr::without_provenance_mut(1 << 40), DType::F32, layout, Access::Read) }
    }

    #[test]
    fn a_launch_has_the_axes_of_the_output_and_the_sizes_that_do_not_follow_from_them() {
        let by = Convolution { stride: [2, 3], padding: [1, 65_535], dilation: [5, 4], groups: 2 };
        let operands = [[3, 4, 9, 70], [6, 2, 2, 1], [3, 6, 3, 43_714]].map(|dims: [usize; 4]| operand(&dims));
        let [x, weight, y] = operands.each_ref();
        for (op, views, shape, inner) in [
            (Op::Conv2d, vec![x, weight, y], [3, 6, 3, 43_714], [2, 2, 1, 9, 70]),
            (Op::Conv2dBackwardInput, vec![x, weight, y, x], [3, 4, 9, 70], [3, 2, 1, 3, 43_714]),
            (Op::Conv2dBackwardWeight, vec![x, weight, y, weight], [6, 2, 2, 1], [3, 3, 43_714, 9, 70]),
        ] {
            let kernel = KernelName::Op(op, DType::F32);
            let planned = convolution(kernel, op, &views, &Params::convolution(by)).unwrap().unwrap();
            let arguments = planned.arguments;
            assert_eq!(
                (arguments.shape[..4].to_vec(), arguments.inner[..5].to_vec()),
                (shape.to_vec(), inner.to_vec()),
                "{op}"
            );
            assert_eq!((arguments.rank, arguments.inner_rank), (4, 5));
            assert_eq!(arguments.value, 2 | 3 << 16 | 1 << 32 | 65_535 << 48);
            assert_eq!(arguments.counter, 5 | 4 << 16 | 2 << 32);
            let last = arguments.views[views.len() - 1].strides;
            assert_eq!(last[..4], [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1], "{op}");
        }
        let by = Pooling { window: [2, 3], stride: [1, 2], padding: [1, 0] };
        let operands = [[3, 4, 9, 7], [3, 4, 10, 3]].map(|dims: [usize; 4]| operand(&dims));
        let [x, y] = operands.each_ref();
        for (op, views, shape, inner) in [
            (Op::MaxPool2d, vec![x, y], [3, 4, 10, 3], [2, 3, 9, 7]),
            (Op::AvgPool2dBackward, vec![x, y, x], [3, 4, 9, 7], [2, 3, 10, 3]),
        ] {
            let planned = pooling(KernelName::Op(op, DType::F32), op, &views, &Params::pooling(by)).unwrap().unwrap();
            let arguments = planned.arguments;
            assert_eq!(
                (arguments.shape[..4].to_vec(), arguments.inner[..4].to_vec()),
                (shape.to_vec(), inner.to_vec()),
                "{op}"
            );
            assert_eq!((arguments.value, arguments.inner_rank), (1 | 2 << 16 | 1 << 32, 4));
        }
    }
}

//! Launches of ops that move elements to other places, or work along one axis in its order: flip, triangles, cumsum, take_along_axis, scatters; and
//! sequences of numbers. The caller has checked the operands and the parameters.

use streamvm_ep::{DType, Extra, Op, Operand, Params};

use crate::plan::abi::Arguments;
use crate::plan::axes::{Axes, Order};
use crate::plan::kernel_name::KernelName;
use crate::plan::{BLOCK, Launch, blank, launch};

/// A launch of one thread for each of `threads` elements or rows.
fn one_each(kernel: KernelName, threads: usize, arguments: Arguments) -> Option<Launch> {
    Some(launch(kernel, threads.div_ceil(BLOCK as usize), BLOCK, 0, arguments))
}

/// Arguments with the addresses of these operands, inputs first.
pub(crate) fn over<const N: usize>(operands: [&Operand; N]) -> Arguments {
    let mut arguments = blank();
    for (view, operand) in operands.into_iter().enumerate() {
        arguments.views[view].base = operand.ptr().addr() as u64;
    }
    arguments
}

/// Flip: a thread for each element. Neighbouring axes are merged if both are flipped, or neither is.
pub(crate) fn flip(a: &Operand, out: &Operand, params: &Params) -> Option<Launch> {
    let (from, to) = (a.layout(), out.layout());
    if to.elements() == 0 {
        return None;
    }
    let mut arguments = over([a, out]);
    let axes = params.axes.or_all(to.shape().rank());
    let mut rank = 0;
    for axis in 0..to.shape().rank() {
        let size = to.shape().dims()[axis] as i64;
        if size == 1 {
            continue;
        }
        let strides = [from, to].map(|layout| layout.strides()[axis] as i64);
        let flipped = u32::from(axes.contains(axis));
        let even = |axis: usize| (0..2).all(|view| arguments.views[view].strides[axis] == strides[view] * size);
        if rank > 0 && arguments.before >> (rank - 1) & 1 == flipped && even(rank - 1) {
            rank -= 1;
        }
        arguments.shape[rank] *= size;
        arguments.before |= flipped << rank;
        for (view, stride) in strides.into_iter().enumerate() {
            arguments.views[view].strides[rank] = stride;
        }
        rank += 1;
    }
    arguments.rank = rank as u32;
    arguments.elements = to.elements() as u64;
    one_each(KernelName::OfSize(Op::Flip, out.dtype().size()), to.elements(), arguments)
}

/// A triangle: a thread for each element.
pub(crate) fn triangle(op: Op, a: &Operand, out: &Operand, diagonal: i64) -> Option<Launch> {
    let (from, to) = (a.layout().strides(), out.layout().strides());
    let (elements, dims) = (out.layout().elements(), out.layout().shape().dims());
    let (batch, &[rows, columns]) = dims.split_last_chunk::<2>().filter(|_| elements > 0)?;
    let mut arguments = over([a, out]);
    let matrices = batch.iter().enumerate().map(|(axis, &size)| (size, [to[axis], from[axis]]));
    Axes::new(Order::ByStride, matrices).write_outer(&mut arguments, [1, 0]);
    (arguments.inner[0], arguments.inner[1]) = (rows as i64, columns as i64);
    arguments.inner_rank = 2;
    arguments.counter = diagonal as u64;
    let rank = arguments.rank as usize;
    for (view, strides) in [from, to].into_iter().enumerate() {
        for inner in 0..2 {
            arguments.views[view].strides[rank + inner] = strides[batch.len() + inner] as i64;
        }
    }
    one_each(KernelName::OfSize(op, out.dtype().size()), elements, arguments)
}

/// Running sums: a thread for each row along the axis.
pub(crate) fn cumsum(kernel: KernelName, a: &Operand, out: &Operand, params: &Params) -> Option<Launch> {
    let axis = params.axes.iter().next().filter(|_| out.layout().elements() > 0)?;
    let mut arguments = over([a, out]);
    let (from, to) = (a.layout().strides(), out.layout().strides());
    write_others(&mut arguments, Order::ByStride, axis, out, [(1, to), (0, from)]);
    write_axis(&mut arguments, &[out.layout().shape().dims()[axis]], [(0, from[axis]), (1, to[axis])]);
    one_each(kernel, arguments.elements as usize, arguments)
}

/// Take along an axis: a thread for each index. The axes keep their order, because an index out of range is reported with its row-major place.
pub(crate) fn take_along_axis([a, at, out]: [&Operand; 3], params: &Params) -> Option<Launch> {
    let axis = params.axes.iter().next().filter(|_| out.layout().elements() > 0)?;
    let mut arguments = over([a, at, out]);
    let [from, index, to] = [a, at, out].map(|operand| operand.layout().strides());
    write_others(&mut arguments, Order::Unchanged, axis, out, [(0, from), (1, index), (2, to)]);
    write_indexed_axis(&mut arguments, axis, a, at, [(0, from[axis]), (1, index[axis]), (2, to[axis])]);
    // Neighbouring threads write neighbouring elements.
    arguments.across = u32::from(to[axis] != 1);
    one_each(KernelName::OfSize(Op::TakeAlongAxis, out.dtype().size()), out.layout().elements(), arguments)
}

/// A scatter: a thread for each row along the axis. The axes keep their order, as those of [`take_along_axis`] do.
pub(crate) fn scatter(op: Op, dtype: DType, [a, at, source, out]: [&Operand; 4], params: &Params) -> Option<Launch> {
    let axis = params.axes.iter().next().filter(|_| out.layout().elements() > 0)?;
    let mut arguments = over([a, at, source, out]);
    let strides = [a, at, source, out].map(|operand| operand.layout().strides());
    let [first, second, third, fourth] = strides;
    write_others(&mut arguments, Order::Unchanged, axis, out, [(0, first), (1, second), (2, third), (3, fourth)]);
    let [a_step, at_step, source_step, out_step] = strides.map(|strides| strides[axis]);
    write_indexed_axis(&mut arguments, axis, a, at, [(0, a_step), (1, at_step), (2, source_step), (3, out_step)]);
    let kernel = match op {
        Op::ScatterAdd => KernelName::Op(op, dtype),
        _ => KernelName::OfSize(op, dtype.size()),
    };
    one_each(kernel, arguments.elements as usize, arguments)
}

/// A sequence of numbers: a thread for each element. The axes keep their order, because an element depends on its row-major index.
pub(crate) fn arange(kernel: KernelName, out: &Operand, params: &Params) -> Option<Launch> {
    let elements = out.layout().elements();
    let (first, step) = match params.extra {
        Extra::Floats { first, step } => (first, step),
        Extra::Integers { first, step } => (first as u64, step as u64),
        _ => return None,
    };
    if elements == 0 {
        return None;
    }
    let mut arguments = over([out]);
    let dims = out.layout().shape().dims().iter().zip(out.layout().strides());
    Axes::new(Order::Unchanged, dims.map(|(&size, &stride)| (size, [stride]))).write_outer(&mut arguments, [0]);
    (arguments.value, arguments.counter) = (first, step);
    one_each(kernel, elements, arguments)
}

/// Writes the axes of `shaped` other than `axis` as the outer ones, with the strides of these views.
pub(crate) fn write_others<const N: usize>(
    arguments: &mut Arguments,
    order: Order,
    axis: usize,
    shaped: &Operand,
    views: [(usize, &[usize]); N],
) {
    let dims = shaped.layout().shape().dims();
    let others = (0..dims.len()).filter(|&other| other != axis);
    let axes = Axes::new(order, others.map(|other| (dims[other], views.map(|(_, strides)| strides[other]))));
    axes.write_outer(arguments, views.map(|(view, _)| view));
}

/// Writes the axis that indices are places on, with the strides of these views along it: its sizes in `a` and in the indices `at`, the size of an index, and what
/// tells the row-major place of an index.
fn write_indexed_axis<const N: usize>(
    arguments: &mut Arguments,
    axis: usize,
    a: &Operand,
    at: &Operand,
    views: [(usize, usize); N],
) {
    write_axis(arguments, &[a, at].map(|operand| operand.layout().shape().dims()[axis]), views);
    arguments.before = at.dtype().size() as u32;
    arguments.counter = a.layout().shape().dims()[axis + 1..].iter().product::<usize>() as u64;
}

/// Writes the sizes of one axis as the inner ones, and after the strides of the outer axes the stride of these views along it.
pub(crate) fn write_axis<const N: usize>(arguments: &mut Arguments, sizes: &[usize], views: [(usize, usize); N]) {
    let rank = arguments.rank as usize;
    arguments.inner_rank = sizes.len() as u32;
    for (place, &size) in sizes.iter().enumerate() {
        arguments.inner[place] = size as i64;
    }
    for (view, stride) in views {
        arguments.views[view].strides[rank] = stride as i64;
    }
}

//! Launches whose threads compute the position of their output: pad, one-hot, index_select, random numbers.

use streamvm_ep::{Error, Extra, Operand, Params, Scalar};

use crate::plan::axes::{Axes, Order};
use crate::plan::kernel_name::KernelName;
use crate::plan::{BLOCK, Launch, bits, blank, launch};

/// Pad: a thread for each element of the output. The caller has checked the operands and the parameters.
pub(crate) fn pad(a: &Operand, out: &Operand, params: &Params) -> Result<Option<Launch>, Error> {
    let (from, to) = (a.layout(), out.layout());
    let Extra::Pad { before, value, .. } = params.extra else { return Ok(None) };
    if to.elements() == 0 {
        return Ok(None);
    }
    let mut arguments = blank();
    arguments.views[0].base = a.ptr().addr() as u64;
    arguments.views[1].base = out.ptr().addr() as u64;
    arguments.elements = to.elements() as u64;
    arguments.value = bits(value, out.dtype())?;
    arguments.before = before;
    let mut rank = 0;
    for axis in 0..to.shape().rank() {
        let [inside, size] = [from, to].map(|layout| layout.shape().dims()[axis] as i64);
        let strides = [from, to].map(|layout| layout.strides()[axis] as i64);
        if (inside, size) == (1, 1) {
            continue;
        }
        let is_whole = |axis: usize| arguments.inner[axis] == arguments.shape[axis];
        let even = |axis: usize| (0..2).all(|view| arguments.views[view].strides[axis] == strides[view] * size);
        if rank > 0 && inside == size && is_whole(rank - 1) && even(rank - 1) {
            // Neither axis has margins: merge them.
            rank -= 1;
        }
        arguments.shape[rank] *= size;
        arguments.inner[rank] *= inside;
        for (view, stride) in strides.into_iter().enumerate() {
            arguments.views[view].strides[rank] = stride;
        }
        rank += 1;
    }
    arguments.rank = rank as u32;
    arguments.inner_rank = rank as u32;
    let blocks = to.elements().div_ceil(BLOCK as usize);
    Ok(Some(launch(KernelName::Pad(out.dtype().size()), blocks, BLOCK, 0, arguments)))
}

/// One-hot: a thread for each element of the output. The outer axes are those of the indices, the inner one the classes.
pub(crate) fn one_hot(a: &Operand, out: &Operand) -> Result<Option<Launch>, Error> {
    let (from, to) = (a.layout(), out.layout());
    let elements = to.elements();
    if elements == 0 {
        return Ok(None);
    }
    let (dims, rank) = (from.shape().dims(), from.shape().rank());
    let indices =
        Axes::new(Order::ByStride, (0..rank).map(|axis| (dims[axis], [to.strides()[axis], from.strides()[axis]])));
    let mut arguments = blank();
    arguments.views[0].base = a.ptr().addr() as u64;
    arguments.views[1].base = out.ptr().addr() as u64;
    indices.write_outer(&mut arguments, [1, 0]);
    Axes::single(to.shape().dims()[rank], [to.strides()[rank]]).write_inner(&mut arguments, [1]);
    arguments.value = bits(Scalar::one(out.dtype()), out.dtype())?;
    let kernel = KernelName::OneHot(a.dtype(), out.dtype().size());
    Ok(Some(launch(kernel, elements.div_ceil(BLOCK as usize), BLOCK, 0, arguments)))
}

/// Index select: a thread for each element of the output. The outer axes are those of the indices, in their order, because an index out of
/// range is reported with its row-major place; the inner ones those of the table.
pub(crate) fn index_select(table: &Operand, indices: &Operand, out: &Operand) -> Option<Launch> {
    let (from, at, to) = (table.layout(), indices.layout(), out.layout());
    let elements = to.elements();
    if elements == 0 {
        return None;
    }
    let (dims, rank) = (at.shape().dims(), at.shape().rank());
    let outer =
        Axes::new(Order::Unchanged, (0..rank).map(|axis| (dims[axis], [at.strides()[axis], to.strides()[axis]])));
    let mut arguments = blank();
    for (view, operand) in [table, indices, out].into_iter().enumerate() {
        arguments.views[view].base = operand.ptr().addr() as u64;
    }
    outer.write_outer(&mut arguments, [1, 2]);
    arguments.inner_rank = 2;
    for axis in 0..2 {
        arguments.inner[axis] = from.shape().dims()[axis] as i64;
        arguments.views[0].strides[axis] = from.strides()[axis] as i64;
    }
    arguments.views[2].strides[arguments.rank as usize] = to.strides()[rank] as i64;
    let kernel = KernelName::IndexSelect(indices.dtype(), out.dtype().size());
    Some(launch(kernel, elements.div_ceil(BLOCK as usize), BLOCK, 0, arguments))
}

/// Random numbers: one thread per block of Philox. The axes keep their order, because the numbers of an element depend on its row-major
/// index.
pub(crate) fn random(kernel: KernelName, out: &Operand, seed: u64, counter: u64) -> Option<Launch> {
    let (layout, elements) = (out.layout(), out.layout().elements());
    if elements == 0 {
        return None;
    }
    let dims = layout.shape().dims().iter().zip(layout.strides());
    let mut arguments = blank();
    arguments.views[0].base = out.ptr().addr() as u64;
    Axes::new(Order::Unchanged, dims.map(|(&size, &stride)| (size, [stride]))).write_outer(&mut arguments, [0]);
    (arguments.value, arguments.counter) = (seed, counter);
    let each = if out.dtype().size() == 8 { 2 } else { 4 };
    Some(launch(kernel, elements.div_ceil(each).div_ceil(BLOCK as usize), BLOCK, 0, arguments))
}

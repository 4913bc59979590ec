//! Launches whose blocks cooperate: reductions, softmax and its gradients, norms, cross entropy, matrix products.

use streamvm_ep::{DType, Layout, Operand, Params};

use crate::plan::abi::Arguments;
use crate::plan::axes::{Axes, Axis, Order, stride_to};
use crate::plan::kernel_name::KernelName;
use crate::plan::reduction_state::ReductionState;
use crate::plan::{BLOCK, Launch, blank, launch, views};

/// The threads of a warp, which is also the number of neighbouring elements that memory is best read in.
pub(crate) const WARP: usize = 32;
/// Largest block of a reduction; `LARGEST_BLOCK` in `abi.cuh`.
pub(crate) const LARGEST_BLOCK: usize = 1024;
/// From this many outputs on, one warp per output fills half of a large device.
const MANY_OUTPUTS: usize = 4096;
/// With many outputs, a row gets one lane for each 32 elements, from 32 to 256 lanes: fewer rows are then under way at once, and a kernel that reads its row
/// again finds it in a cache.
const ELEMENTS_OF_A_LANE: usize = 32;
/// The threads that an H200 holds at once (132 multiprocessors of 2048), rounded down to a power of two.
pub(crate) const DEVICE_THREADS: usize = 1 << 18;
/// With fewer outputs than this, each gets the largest block, because there are fewer outputs than multiprocessors.
const FEW_OUTPUTS: usize = 128;

/// The bytes of one field of a thread's state, the largest over all dtypes.
const STATE: usize = 8;

/// Bytes of shared memory for each thread.
pub(crate) fn shared_state(kernel: KernelName) -> usize {
    STATE * ReductionState::of(kernel).map_or(1, |state| state.fields().len())
}

/// Tile, depth and pitch of `matmul.cu`.
const TILE: usize = 64;
const DEPTH: usize = 16;
const PITCH: usize = TILE + 1;

/// A reduction: the input is view 0, the output view 1.
pub(crate) fn reduction(kernel: KernelName, a: &Operand, out: &Operand, params: &Params) -> Option<Launch> {
    let (from, to) = (a.layout(), out.layout());
    let (dims, rank) = (from.shape().dims(), from.shape().rank());
    let reduced = params.axes.or_all(rank);
    let mut place = 0;
    let kept = Axes::new(
        Order::ByStride,
        (0..rank).filter_map(|axis| {
            if reduced.contains(axis) {
                place += usize::from(params.keep_dims);
                return None;
            }
            let strides = [to.strides()[place], from.strides()[axis]];
            place += 1;
            Some((dims[axis], strides))
        }),
    );
    let inner = Axes::new(Order::ByStride, reduced.iter().map(|axis| (dims[axis], [from.strides()[axis]])));
    cooperative_launch(kernel, [out, a], kept, &inner.or_one(), |inner, arguments| {
        inner.write_inner(arguments, [0]);
    })
}

/// Softmax, log-softmax and their gradients, the output first: the rows are the outer axes, the axis the inner one.
pub(crate) fn softmax<const N: usize>(kernel: KernelName, operands: [&Operand; N], params: &Params) -> Option<Launch> {
    let layouts = operands.map(Operand::layout);
    let (dims, rank) = (layouts[0].shape().dims(), layouts[0].shape().rank());
    let strides = |axis: usize| layouts.map(|layout| layout.strides()[axis]);
    let others = (0..rank).filter(|&axis| !params.axes.contains(axis));
    let rows = Axes::new(Order::ByStride, others.map(|axis| (dims[axis], strides(axis))));
    let mut inner = Axes::single(1, [0; N]);
    for axis in params.axes.iter() {
        inner = Axes::single(dims[axis], strides(axis));
    }
    let along = Axes::single(inner.elements(), [inner.innermost().strides[1]]);
    cooperative_launch(kernel, operands, rows, &along, |_, arguments| inner.write_inner(arguments, views()))
}

/// Layer norm or RMS norm, the output and the input first: the rows are the outer axes, the innermost axis is the inner one, along which the other
/// operands lie.
pub(crate) fn norm<const N: usize>(kernel: KernelName, operands: [&Operand; N], epsilon: f64) -> Option<Launch> {
    let layouts = operands.map(Operand::layout);
    let (dims, last) = (layouts[0].shape().dims(), layouts[0].shape().rank() - 1);
    let stride = |operand: usize, axis: usize| if operand < 2 { layouts[operand].strides()[axis] } else { 0 };
    let others = (0..last).map(|axis| (dims[axis], std::array::from_fn(|operand| stride(operand, axis))));
    let rows = Axes::new(Order::ByStride, others);
    let strides: [usize; N] =
        std::array::from_fn(|operand| layouts[operand].strides()[if operand < 2 { last } else { 0 }]);
    let inner = Axes::single(dims[last], strides);
    let along = Axes::single(dims[last], [strides[1]]);
    let mut launch =
        cooperative_launch(kernel, operands, rows, &along, |_, arguments| inner.write_inner(arguments, views()))?;
    launch.arguments.value = epsilon.to_bits();
    Some(launch)
}

/// Cross entropy or its gradient, the output first: the rows are the outer axes, the innermost axis is the inner one, which not every operand has.
pub(crate) fn cross_entropy<const N: usize>(
    kernel: KernelName,
    operands: [&Operand; N],
    has_classes: [bool; N],
) -> Option<Launch> {
    let logits = operands[1].layout();
    let (dims, last) = (logits.shape().dims(), logits.shape().rank() - 1);
    let others = (0..last).map(|axis| (dims[axis], operands.map(|operand| operand.layout().strides()[axis])));
    let rows = Axes::new(Order::ByStride, others);
    let strides: [usize; N] =
        std::array::from_fn(
            |operand| if has_classes[operand] { operands[operand].layout().strides()[last] } else { 0 },
        );
    let inner = Axes::single(dims[last], strides);
    let along = Axes::single(dims[last], [strides[1]]);
    cooperative_launch(kernel, operands, rows, &along, |_, arguments| inner.write_inner(arguments, views()))
}

/// A launch in which threads share outputs or rows. `kept` has the strides of the output and the inputs, `inner` those of the first
/// input.
fn cooperative_launch<const N: usize>(
    kernel: KernelName,
    operands: [&Operand; N],
    kept: Axes<N>,
    inner: &Axes<1>,
    write_inner: impl FnOnce(&Axes<1>, &mut Arguments),
) -> Option<Launch> {
    let outputs = kept.elements();
    if outputs == 0 || operands[0].layout().elements() == 0 {
        return None;
    }
    let mut arguments = blank();
    for (view, operand) in views::<N>().into_iter().zip(operands) {
        arguments.views[view].base = operand.ptr().addr() as u64;
    }
    kept.write_outer(&mut arguments, views());
    write_inner(inner, &mut arguments);
    let team = Team::of(outputs, inner.elements(), kept.innermost(), inner.innermost());
    arguments.lanes = team.lanes as u32;
    arguments.across = team.across.into();
    let blocks = outputs.div_ceil(team.block / team.lanes);
    Some(launch(kernel, blocks, team.block as u32, (team.block * shared_state(kernel)) as u32, arguments))
}

/// How threads share the outputs.
#[derive(Debug, PartialEq)]
struct Team {
    block: usize,
    lanes: usize,
    across: bool,
}

impl Team {
    /// The team for `outputs` outputs of `elements` elements each. The strides of the first input along the innermost kept axis and the
    /// innermost reduced axis decide along which of them neighbouring threads read neighbouring elements.
    fn of<const N: usize>(outputs: usize, elements: usize, kept: Axis<N>, reduced: Axis<1>) -> Team {
        let across = kept.size > 1 && kept.strides[1] != 0 && kept.strides[1] < reduced.strides[0];
        let most = match (across, outputs) {
            (true, outputs) => floor_to_power_of_two(DEVICE_THREADS / outputs.max(1)).clamp(1, LARGEST_BLOCK / WARP),
            (false, outputs) if outputs >= MANY_OUTPUTS => {
                floor_to_power_of_two(elements / ELEMENTS_OF_A_LANE).clamp(WARP, BLOCK as usize)
            }
            (false, outputs) if outputs >= FEW_OUTPUTS => BLOCK as usize,
            (false, _) => LARGEST_BLOCK,
        };
        let lanes = elements.clamp(1, most).next_power_of_two();
        // Across: for each lane, one warp works on neighbouring outputs.
        let block = if across { lanes * WARP } else { lanes };
        Team { block: block.max(BLOCK as usize), lanes, across }
    }
}

/// The largest power of two that is not larger; 0 of 0.
fn floor_to_power_of_two(number: usize) -> usize {
    number.checked_ilog2().map_or(0, |log| 1 << log)
}

/// A matrix product: the batch is the outer axes, m, n and k the inner ones.
pub(crate) fn matmul(kernel: KernelName, a: &Operand, b: &Operand, out: &Operand) -> Option<Launch> {
    if out.layout().elements() == 0 {
        return None;
    }
    let operands = [a, b, out];
    let layouts = operands.map(Operand::layout);
    let shape = layouts[2].shape();
    let batch_rank = shape.rank() - 2;
    let batch = Axes::new(
        Order::Unchanged,
        (0..batch_rank).map(|axis| (shape.dims()[axis], layouts.map(|layout| stride_to(layout, axis, shape.rank())))),
    );
    let mut arguments = blank();
    batch.write_outer(&mut arguments, [0, 1, 2]);
    let outer = arguments.rank as usize;
    for (view, operand) in operands.into_iter().enumerate() {
        arguments.views[view].base = operand.ptr().addr() as u64;
        let [row, column] = matrix_strides(operand.layout());
        arguments.views[view].strides[outer] = row as i64;
        arguments.views[view].strides[outer + 1] = column as i64;
    }
    let (m, n) = (shape.dims()[batch_rank], shape.dims()[batch_rank + 1]);
    let k = layouts[0].shape().dims()[layouts[0].shape().rank() - 1];
    arguments.inner_rank = 3;
    arguments.inner[..3].copy_from_slice(&[m as i64, n as i64, k as i64]);
    let tiles = batch.elements() * m.div_ceil(TILE) * n.div_ceil(TILE);
    let shared = 2 * DEPTH * PITCH * sum_size(out.dtype());
    Some(launch(kernel, tiles, BLOCK, shared as u32, arguments))
}

/// Strides of a row and of a column of a layout of at least two axes.
fn matrix_strides(layout: &Layout) -> [usize; 2] {
    let rank = layout.shape().rank();
    [layout.strides()[rank - 2], layout.strides()[rank - 1]]
}

/// The bytes of one accumulator for products of this dtype: 16-bit floats accumulate in `f32`.
fn sum_size(dtype: DType) -> usize {
    dtype.size().max(4)
}

#[cfg(test)]
#[path = "reduce_tests.rs"]
mod tests;

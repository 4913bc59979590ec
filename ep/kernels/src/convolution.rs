//! Convolutions and their gradients, as products of the weight and tiles of the [patch matrix](super::patches) of each image:
//!
//! * `y = weight * patches(x)`, where it is not [computed directly](super::direct_convolution);
//! * the gradient of the patches is `weight^T * dy`, and that of the input adds up, for each element, those of the patches that have it;
//! * the gradient of the weight is the sum of `dy * patches(x)^T` over all images.
//!
//! Threads share images, groups, and tiles or channels. Each part is computed in one order, and its size follows from the shapes alone, so results do
//! not depend on the number of threads. 16-bit floats are widened to `f32` and rounded once.
//!
//! A thread allocates scratch memory for the parts that it computes, in the type of computations:
//!
//! * a [tile](tile_of) of the patch matrix;
//! * for 16-bit floats, or where the positions of the output or of its gradient are not evenly spaced: a matrix with the columns of a tile, and a row
//!   for each channel of the output in a group;
//! * `conv2d_backward_input`: sums for at most [`SUMS`] elements, or one channel of the image if that has more;
//! * `conv2d_backward_weight`: sums for [`ROWS`] columns of the weight, in each channel of the output in a group.
//!
//! A call copies the whole weight, once, if it has 16-bit floats or its rows are not evenly spaced.

use std::ops::Range;

use streamvm_ep::backend::ConvolutionForm;
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op, Operand};

use crate::direct_convolution::Convolve;
use crate::loop_nest::LoopNest;
use crate::matmul::Matrix;
use crate::matmul_float::{self, Product};
use crate::number::{DTypeTag, Float, Number};
use crate::parallel;
use crate::patches::{Image, PRODUCTS, WideMatrix, even_positions, fold, round_positions, tile_of, unfold};
use crate::row_tiles;
use crate::rows::{self, OutRow, output};

/// Rows of a patch matrix that a part of a gradient has at least, if there are so many: fewer would make products of few rows.
const ROWS: usize = 128;

/// Elements that a part of a gradient of the input adds up at most, where it has more than one channel: 1 MiB of `f32`, which a second-level cache
/// holds. Images of up to 128 * 128 elements have 16 channels in a part, more than a window of 3 * 3 asks for by [`ROWS`].
const SUMS: usize = 1 << 18;

/// The type that elements of `D` are computed in.
type Wide<D> = <<D as DTypeTag>::Store as Float>::Wide;

/// The parts of a range of `count` that have `length` elements, but for the last one.
fn part_of(count: usize, length: usize, index: usize) -> Range<usize> {
    index * length..((index + 1) * length).min(count)
}

/// The kernel of [`Op::Conv2d`].
pub(super) fn conv2d<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Convolve,
{
    let ([x, weight], out) = checked_operands(call, [D::DTYPE; 2], D::DTYPE, InPlace::Refused)?;
    check_inferred(Op::Conv2d, [x, weight], out, call)?;
    let by = call.params.checked_convolution(Op::Conv2d)?;
    let form = ConvolutionForm::of(Op::Conv2d, x.layout().shape(), weight.layout().shape(), by)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    // SAFETY: the weight holds elements of `D`, aligned, which nothing writes during the call.
    let weights = unsafe { WideMatrix::of_weight::<D::Store>(weight) };
    // SAFETY: the operands hold elements of `D`, aligned; the output may be written, reaches no element twice, and overlaps no input.
    if unsafe { D::Store::convolve(&form, x, &weights, out) } {
        return Ok(());
    }
    let depth = form.channels * form.window();
    let tile = tile_of(&form, depth);
    let tiles = form.positions().div_ceil(tile);
    let work = (tile * form.outputs).saturating_mul(depth) / PRODUCTS + 1;
    parallel::ranges(form.batch * form.groups * tiles, work, |parts| {
        let mut patches = vec![Wide::<D>::ZERO; depth * tile];
        let mut sums = Vec::new();
        for part in parts {
            let (image, group) = (part / tiles / form.groups, part / tiles % form.groups);
            let positions = part_of(form.positions(), tile, part % tiles);
            let from = Image::of(x, image, group * form.channels);
            let to = Image::of(out, image, group * form.outputs);
            // SAFETY: the input holds elements of `D`, which nothing writes, and inference has checked the sizes.
            unsafe { unfold::<D::Store>(&form, from, 0..depth, &positions, &mut patches) };
            let left = (weights.at(group * form.outputs, 0), weights.part(form.outputs, depth));
            let right = (patches.as_ptr(), dense(depth, positions.len()));
            if let Some(stride) = even_positions(&form, to).filter(|_| !D::Store::IS_HALF) {
                let first = output::<Wide<D>>(out, to.first + positions.start * stride, 1).first;
                let product = Matrix {
                    rows: form.outputs,
                    columns: positions.len(),
                    row_stride: to.strides[0],
                    column_stride: stride,
                };
                // SAFETY: the matrices have matching sizes. The elements of the output, which are computed in their own type, may be written, and
                // parts of it do not overlap.
                unsafe { matmul_float::multiply(Product { out: (first, product), a: left, b: right, adds: false }) };
                continue;
            }
            sums.resize(form.outputs * positions.len(), Wide::<D>::ZERO);
            let product = (sums.as_mut_ptr(), dense(form.outputs, positions.len()));
            // SAFETY: the matrices have matching sizes, and each is memory of its own.
            unsafe { matmul_float::multiply(Product { out: product, a: left, b: right, adds: false }) };
            // SAFETY: the output holds elements of `D` that may be written, and parts of it do not overlap.
            unsafe { round_positions::<D::Store>(&form, to, &positions, &sums) };
        }
    });
    Ok(())
}

/// A matrix without gaps.
fn dense(rows: usize, columns: usize) -> Matrix {
    Matrix { rows, columns, row_stride: columns, column_stride: 1 }
}

/// The operands of a gradient, after all checks, and the sizes of its convolution.
fn gradient<'a, D: DTypeTag>(
    op: Op,
    call: &'a KernelCall<'_, '_>,
) -> Result<([&'a Operand<'a>; 3], &'a Operand<'a>, ConvolutionForm), KernelError> {
    let (inputs, out) = checked_operands(call, [D::DTYPE; 3], D::DTYPE, InPlace::Refused)?;
    check_inferred(op, inputs, out, call)?;
    let by = call.params.checked_convolution(op)?;
    let [x, weight, _] = inputs;
    let form = ConvolutionForm::of(op, x.layout().shape(), weight.layout().shape(), by)?;
    Ok((inputs, out, form))
}

/// The kernel of [`Op::Conv2dBackwardInput`].
pub(super) fn conv2d_backward_input<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([_, weight, dy], out, form) = gradient::<D>(Op::Conv2dBackwardInput, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    if form.outputs == 0 {
        // Nothing adds to the gradient. The window of an empty weight may have any size, so no scratch memory may follow from it.
        let nest = LoopNest::new([out.layout()]);
        let [stride] = nest.row_strides();
        nest.rows_in_parallel(parallel::LIGHT, |[first], length| {
            // SAFETY: the loop nest stays within the output, which holds elements of `D` that may be written.
            unsafe { rows::fill(length, output(out, first, stride), D::Store::ZERO) };
        });
        return Ok(());
    }
    // SAFETY: the weight holds elements of `D`, aligned, which nothing writes during the call.
    let weights = unsafe { WideMatrix::of_weight::<D::Store>(weight) };
    let [height, width] = form.axes.map(|axis| axis.input);
    let channels = (ROWS / form.window()).min(SUMS / (height * width)).clamp(1, form.channels);
    let parts_of_group = form.channels.div_ceil(channels);
    let depth = channels * form.window();
    let tile = tile_of(&form, depth);
    let work = (form.positions() * form.outputs).saturating_mul(depth) / PRODUCTS + 1;
    parallel::ranges(form.batch * form.groups * parts_of_group, work, |parts| {
        let mut patches = vec![Wide::<D>::ZERO; depth * tile];
        let mut sums = vec![Wide::<D>::ZERO; channels * height * width];
        for part in parts {
            let of_images = part / parts_of_group;
            let (image, group) = (of_images / form.groups, of_images % form.groups);
            let own = part_of(form.channels, channels, part % parts_of_group);
            let rows = own.start * form.window()..own.end * form.window();
            let from = Image::of(dy, image, group * form.outputs);
            sums.fill(Wide::<D>::ZERO);
            for tile_index in 0..form.positions().div_ceil(tile) {
                let positions = part_of(form.positions(), tile, tile_index);
                // SAFETY: the gradient holds elements of `D`, which nothing writes, and inference has checked its sizes.
                let dy = unsafe { WideMatrix::of_positions::<D::Store>(&form, from, form.outputs, &positions) };
                let left = Matrix {
                    rows: rows.len(),
                    columns: form.outputs,
                    row_stride: weights.form.column_stride,
                    column_stride: weights.form.row_stride,
                };
                let left = (weights.at(group * form.outputs, rows.start), left);
                let product = (patches.as_mut_ptr(), dense(rows.len(), positions.len()));
                // SAFETY: the matrices have matching sizes, and nothing else accesses the tile.
                unsafe {
                    matmul_float::multiply(Product { out: product, a: left, b: (dy.at(0, 0), dy.form), adds: false })
                };
                fold(&form, rows.clone(), &positions, &patches, &mut sums);
            }
            let to = Image::of(out, image, group * form.channels + own.start);
            for (line, sums) in sums[..own.len() * height * width].chunks(width).enumerate() {
                let place = to.first + line / height * to.strides[0] + line % height * to.strides[1];
                // SAFETY: the output holds elements of `D` that may be written, and parts of it do not overlap.
                unsafe { row_tiles::round_row::<D::Store>(width, output(out, place, to.strides[2]), sums.as_ptr()) };
            }
        }
    });
    Ok(())
}

/// The kernel of [`Op::Conv2dBackwardWeight`].
pub(super) fn conv2d_backward_weight<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([x, _, dy], out, form) = gradient::<D>(Op::Conv2dBackwardWeight, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    let depth = form.channels * form.window();
    let parts_of_group = depth.div_ceil(ROWS);
    let tile = tile_of(&form, ROWS.min(depth));
    let products = form.batch.saturating_mul(form.positions() * form.outputs).saturating_mul(ROWS.min(depth));
    parallel::ranges(form.groups * parts_of_group, products / PRODUCTS + 1, |parts| {
        let mut patches = vec![Wide::<D>::ZERO; ROWS.min(depth) * tile];
        for part in parts {
            let group = part / parts_of_group;
            let rows = part_of(depth, ROWS, part % parts_of_group);
            let mut sums = vec![Wide::<D>::ZERO; form.outputs * rows.len()];
            for image in 0..form.batch {
                let from = Image::of(x, image, group * form.channels);
                let gradients = Image::of(dy, image, group * form.outputs);
                for tile_index in 0..form.positions().div_ceil(tile) {
                    let positions = part_of(form.positions(), tile, tile_index);
                    // SAFETY: the input holds elements of `D`, which nothing writes, and inference has checked the sizes.
                    unsafe { unfold::<D::Store>(&form, from, rows.clone(), &positions, &mut patches) };
                    // SAFETY: as above, for the gradient.
                    let dy =
                        unsafe { WideMatrix::of_positions::<D::Store>(&form, gradients, form.outputs, &positions) };
                    let right = Matrix {
                        rows: positions.len(),
                        columns: rows.len(),
                        row_stride: 1,
                        column_stride: positions.len(),
                    };
                    let product = (sums.as_mut_ptr(), dense(form.outputs, rows.len()));
                    let (left, right) = ((dy.at(0, 0), dy.form), (patches.as_ptr(), right));
                    // SAFETY: the matrices have matching sizes, and nothing else accesses the sums.
                    unsafe { matmul_float::multiply(Product { out: product, a: left, b: right, adds: true }) };
                }
            }
            // SAFETY: the output holds elements of `D` that may be written, and parts of it do not overlap.
            unsafe { round_weight::<D::Store>(&form, out, group, rows, &sums) };
        }
    });
    Ok(())
}

/// Rounds some columns of a gradient of the weight, with a row for each channel of the output of a group, to the output.
///
/// # Safety
///
/// * `out` has the shape of the weight and holds elements of `T`, aligned, which may be written and which nothing else accesses.
unsafe fn round_weight<T: Float>(
    form: &ConvolutionForm,
    out: &Operand,
    group: usize,
    columns: Range<usize>,
    sums: &[T::Wide],
) {
    let strides = out.layout().strides();
    let wide = form.axes[1].window;
    for (channel, row) in sums.chunks(columns.len()).enumerate() {
        let first = (group * form.outputs + channel) * strides[0];
        for (column, &sum) in columns.clone().zip(row) {
            let element = column % form.window();
            let place = column / form.window() * strides[1] + element / wide * strides[2] + element % wide * strides[3];
            let to: OutRow<T> = output(out, first + place, 1);
            // SAFETY: the place is one of the output, and the caller guarantees its elements.
            unsafe { to.set(0, T::rounded(sum)) };
        }
    }
}

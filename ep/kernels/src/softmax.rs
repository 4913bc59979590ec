//! Softmax and log-softmax over one axis, and their gradients. Sums are kept in `f64`.
//!
//! The largest element is subtracted first, so that no exponential overflows. For 16-bit floats the exponentials are computed twice,
//! because storing them would round them; so each result is rounded only once. A row with a NaN or `+inf`, or with only `-inf`, gives
//! NaN.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{Axes, KernelCall, KernelError, Op, Operand};

use crate::folds;
use crate::functions::Functions as _;
use crate::half_floats;
use crate::lanes;
use crate::long_rows;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::parallel;
use crate::rows::{InRow, OutRow, input, output};
use crate::simd_dispatch;

/// The last step of one row: it makes results of exponentials, or of elements.
pub(super) trait Forward {
    const OP: Op;

    /// Writes the results of a row whose largest element is `largest`. `sum` is the sum of the exponentials of the elements less the
    /// largest; `out` holds these exponentials, unless it is of 16-bit floats.
    ///
    /// # Safety
    ///
    /// * The first `length` elements of `row` and `out` are as [`InRow::get`] and [`OutRow::set`] require.
    unsafe fn finish<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>, largest: T::Wide, sum: f64);
}

/// The computation of the gradient of one row, from the row that [`Forward`] wrote and the gradient of that.
pub(super) trait Backward {
    const OP: Op;

    /// # Safety
    ///
    /// * The first `length` elements of `y`, `dy` and `out` are as [`InRow::get`] and [`OutRow::set`] require.
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>);
}

/// The kernel of [`Op::Softmax`] and [`Op::LogSoftmax`].
pub(super) fn forward<D, F: Forward>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([a], out) = checked_operands(call, [D::DTYPE], D::DTYPE, InPlace::Refused)?;
    check_inferred(F::OP, [a], out, call)?;
    each_group([out, a], call.params.axes, |length, count, firsts, [out_stride, a_stride]| {
        let rows = |place: usize| {
            let [to, from]: [usize; 2] = firsts(place);
            (output::<D::Store>(out, to, out_stride), input::<D::Store>(a, from, a_stride))
        };
        // SAFETY: the rows are within both operands, which hold `D`; the output may be written and does not overlap the input.
        unsafe { group::<D::Store, F>(length, count, rows) };
    });
    Ok(())
}

/// The results of the first `count` rows that `rows` gives, step by step: while a step ends in one row it already begins in the next, so
/// that short rows do not wait for its last results.
///
/// # Safety
///
/// * `count` is at most [`GROUP`].
/// * As for [`Forward::finish`], for each row.
unsafe fn group<T: Float, F: Forward>(length: usize, count: usize, rows: impl Fn(usize) -> (OutRow<T>, InRow<T>)) {
    let mut largest = [T::LOWEST.wide(); GROUP];
    let mut sums = [0.0; GROUP];
    for (place, largest) in largest[..count].iter_mut().enumerate() {
        let (_, row) = rows(place);
        // SAFETY: the caller guarantees this.
        *largest = unsafe { folds::extreme(length, row, T::LOWEST, T::exceeds) }.wide();
    }
    for (place, &largest) in largest[..count].iter().enumerate().filter(|_| !T::IS_HALF) {
        let (out, row) = rows(place);
        // SAFETY: the caller guarantees this.
        unsafe { exponentials(length, out, row, largest) };
    }
    for (place, sum) in sums[..count].iter_mut().enumerate() {
        let (out, row) = rows(place);
        if T::IS_HALF {
            let add = |_, count, block: OutRow<T::Wide>| {
                // SAFETY: `exponential_blocks` gives `count` elements, which nothing else accesses.
                *sum += unsafe { folds::sum(count, block.written()) };
            };
            // SAFETY: the caller guarantees this.
            unsafe { exponential_blocks(length, row, largest[place], add) };
        } else {
            // SAFETY: `out` holds the elements that were just written, and nothing else accesses it.
            *sum = unsafe { folds::sum(length, out.written()) };
        }
    }
    for (place, (&largest, &sum)) in largest.iter().zip(&sums).take(count).enumerate() {
        let (out, row) = rows(place);
        // SAFETY: the caller guarantees this.
        unsafe { F::finish(length, out, row, largest, sum) };
    }
}

/// Writes the exponential of each element less `largest`.
///
/// # Safety
///
/// * As for [`long_rows::map1_long`].
unsafe fn exponentials<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>, largest: T::Wide) {
    // SAFETY: the caller guarantees this.
    unsafe { long_rows::map1_long(length, out, row, move |x: T| T::rounded(x.wide().sub(largest).exp())) };
}

/// Calls `visit` with the exponentials of the elements of a row less `largest`, block by block: the number of the first of them, their count, and
/// a row of them that `visit` may write.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
pub(super) unsafe fn exponential_blocks<T: Float>(
    length: usize,
    row: InRow<T>,
    largest: T::Wide,
    mut visit: impl FnMut(usize, usize, OutRow<T::Wide>),
) {
    if T::IS_HALF {
        let visit = |first, count, block: OutRow<T::Wide>| {
            // SAFETY: `in_wide_blocks` gives `count` elements, which nothing else accesses.
            unsafe { exponentials(count, block, block.written(), largest) };
            visit(first, count, block);
        };
        // SAFETY: the caller guarantees this.
        return unsafe { in_wide_blocks(length, row, visit) };
    }
    // The same type.
    let row: InRow<T::Wide> = InRow { first: row.first.cast(), stride: row.stride };
    in_blocks(length, |first, count, block| {
        // SAFETY: the caller guarantees the elements, and the block has room for `count`.
        unsafe { exponentials(count, block, row.from(first), largest) };
        visit(first, count, block);
    });
}

/// Calls `visit` with the elements of a row in the type of computations, block by block: the number of its first element, their count, and
/// a row of them that `visit` may write.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn in_wide_blocks<T: Float>(length: usize, row: InRow<T>, mut visit: impl FnMut(usize, usize, OutRow<T::Wide>)) {
    in_blocks(length, |first, count, block| {
        // SAFETY: the caller guarantees the elements, and the block has room for `count`.
        unsafe { half_floats::widen_row(count, block.first, row.from(first)) };
        visit(first, count, block);
    });
}

/// The exponentials that are computed together: at most 4 KiB, which stay in the first-level cache.
const EXPONENTIALS: usize = 512;

/// Calls `visit` for each block of a row: the number of its first element, its count, and room for so many elements, which are not initialised.
fn in_blocks<W: Copy>(length: usize, mut visit: impl FnMut(usize, usize, OutRow<W>)) {
    let mut elements = [const { MaybeUninit::<W>::uninit() }; EXPONENTIALS];
    let block = OutRow { first: elements.as_mut_ptr().cast(), stride: 1 };
    for first in (0..length).step_by(EXPONENTIALS) {
        visit(first, EXPONENTIALS.min(length - first), block);
    }
}

/// The kernel of [`Op::SoftmaxBackward`] and [`Op::LogSoftmaxBackward`].
pub(super) fn backward<D, B: Backward>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([y, dy], out) = checked_operands(call, [D::DTYPE; 2], D::DTYPE, InPlace::Refused)?;
    check_inferred(B::OP, [y, dy], out, call)?;
    each_row([out, y, dy], call.params.axes, |length, [to, from_y, from_dy], [out_stride, y_stride, dy_stride]| {
        let out = output::<D::Store>(out, to, out_stride);
        let (y, dy) = (input::<D::Store>(y, from_y, y_stride), input::<D::Store>(dy, from_dy, dy_stride));
        // SAFETY: the row is within the operands, which hold `D`; the output may be written and overlaps no input.
        simd_dispatch::run_wide(unsafe { BackwardRow::<D::Store, B>::new(length, out, y, dy) });
    });
    Ok(())
}

/// One row of [`backward`].
struct BackwardRow<T, B> {
    length: usize,
    out: OutRow<T>,
    y: InRow<T>,
    dy: InRow<T>,
    how: PhantomData<B>,
}

impl<T, B> BackwardRow<T, B> {
    /// # Safety
    ///
    /// * The requirements of [`Backward::row`] hold as long as the value exists.
    #[inline(always)]
    unsafe fn new(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>) -> Self {
        BackwardRow { length, out, y, dy, how: PhantomData }
    }
}

impl<T: Float, B: Backward> WithSimd for BackwardRow<T, B> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // SAFETY: the caller of `new` guarantees this.
        unsafe { B::row(self.length, self.out, self.y, self.dy) }
    }
}

/// The most rows of a group, as many as need nothing of each other's results.
const GROUP: usize = 8;

/// The elements of a group: it stays in the first-level cache from step to step.
const GROUP_ELEMENTS: usize = 1 << 12;

/// Calls `row` for each row along the one axis of `axes`, with its length, and with the offset of its first element and its stride in
/// each operand. The operands have one shape.
fn each_row<const N: usize>(operands: [&Operand; N], axes: Axes, row: impl Fn(usize, [usize; N], [usize; N]) + Sync) {
    each_group(operands, axes, |length, count, firsts, strides| {
        for place in 0..count {
            row(length, firsts(place), strides);
        }
    });
}

/// Calls `group` for groups of up to [`GROUP`] rows along the one axis of `axes`, with the length of a row, the number of rows, the
/// offsets of the first element of each, and its stride in each operand. The operands have one shape.
fn each_group<const N: usize>(
    operands: [&Operand; N],
    axes: Axes,
    group: impl Fn(usize, usize, &dyn Fn(usize) -> [usize; N], [usize; N]) + Sync,
) {
    let layouts = operands.map(Operand::layout);
    let dims = layouts[0].shape().dims();
    for axis in axes.iter().filter(|&axis| dims[axis] > 0) {
        let strides = |axis: usize| layouts.map(|layout| layout.strides()[axis]);
        let others = (0..dims.len()).filter(|&other| other != axis);
        let nest = LoopNest::over(others.map(|other| (dims[other], strides(other))));
        let next = nest.row_strides();
        let most = (GROUP_ELEMENTS / dims[axis]).clamp(1, GROUP);
        nest.rows_in_parallel(dims[axis] * parallel::LONG, |first, rows| {
            for start in (0..rows).step_by(most) {
                let firsts = |place| lanes::array(|operand| first[operand] + (start + place) * next[operand]);
                group(dims[axis], most.min(rows - start), &firsts, strides(axis));
            }
        });
    }
}

/// `exp(x) / sum(exp(x))`.
pub(super) struct Softmax;

impl Forward for Softmax {
    const OP: Op = Op::Softmax;

    #[inline(always)]
    unsafe fn finish<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>, largest: T::Wide, sum: f64) {
        // 1 / sum as a number and its error: a product with both is rounded once, and faster than a division.
        let factor = T::Wide::from_sum(1.0 / sum);
        let error = T::Wide::from_sum((-sum).mul_add(factor.to_sum(), 1.0) * factor.to_sum());
        if !T::IS_HALF {
            // SAFETY: `out` holds the exponentials, and nothing else accesses it.
            return unsafe { scaled(length, out, factor, error) };
        }
        let finish = |first, count, block: OutRow<T::Wide>| {
            // SAFETY: `exponential_blocks` gives `count` elements, which nothing else accesses.
            unsafe { scaled(count, block, factor, error) };
            // SAFETY: as above, and the caller guarantees the elements of `out`.
            unsafe { half_floats::round_row(count, out.from(first), block.written().first) };
        };
        // SAFETY: the caller guarantees this.
        unsafe { exponential_blocks(length, row, largest, finish) };
    }
}

/// Multiplies each element with a factor that is a sum of two numbers, and rounds once.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] and [`OutRow::set`] require.
unsafe fn scaled<T: Float>(length: usize, row: OutRow<T>, factor: T::Wide, error: T::Wide) {
    let product = move |x: T| T::rounded(x.wide().mul_add(factor, x.wide().mul(error)));
    // SAFETY: the caller guarantees this.
    unsafe { long_rows::map1_long(length, row, row.written(), product) };
}

/// `x - log(sum(exp(x)))`. The logarithm is computed from the sum in `f64`, because a row with one dominant element has a sum only a
/// little larger than 1.
pub(super) struct LogSoftmax;

impl Forward for LogSoftmax {
    const OP: Op = Op::LogSoftmax;

    #[inline(always)]
    unsafe fn finish<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>, largest: T::Wide, sum: f64) {
        let log = T::Wide::from_sum(sum.ln());
        if !T::IS_HALF {
            // SAFETY: the caller guarantees this.
            return unsafe {
                long_rows::map1_long(length, out, row, move |x: T| T::rounded(x.wide().sub(largest).sub(log)))
            };
        }
        let finish = |first, count, block: OutRow<T::Wide>| {
            // SAFETY: `in_wide_blocks` gives `count` elements, which nothing else accesses.
            unsafe { long_rows::map1_long(count, block, block.written(), move |x: T::Wide| x.sub(largest).sub(log)) };
            // SAFETY: as above, and the caller guarantees the elements of `out`.
            unsafe { half_floats::round_row(count, out.from(first), block.written().first) };
        };
        // SAFETY: the caller guarantees this.
        unsafe { in_wide_blocks(length, row, finish) };
    }
}

/// `y * (dy - sum(y * dy))`.
pub(super) struct SoftmaxBackward;

impl Backward for SoftmaxBackward {
    const OP: Op = Op::SoftmaxBackward;

    #[inline(always)]
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>) {
        let step = |sum: f64, y: T, dy: T| sum + y.wide().to_sum() * dy.wide().to_sum();
        // SAFETY: the caller guarantees this.
        let sum = unsafe { folds::fold2(length, y, dy, 0.0, 0.0, step, Number::add) };
        let gradient = |y: T, dy: T| T::rounded(y.wide().mul(T::Wide::from_sum(dy.wide().to_sum() - sum)));
        // SAFETY: the caller guarantees this.
        unsafe { long_rows::map2_in_blocks(length, out, y, dy, gradient) };
    }
}

/// `dy - exp(y) * sum(dy)`.
pub(super) struct LogSoftmaxBackward;

impl Backward for LogSoftmaxBackward {
    const OP: Op = Op::LogSoftmaxBackward;

    #[inline(always)]
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>) {
        // SAFETY: the caller guarantees this.
        let sum = unsafe { folds::sum(length, dy) };
        let gradient = |y: T, dy: T| T::rounded(T::Wide::from_sum(dy.wide().to_sum() - y.wide().exp().to_sum() * sum));
        // SAFETY: the caller guarantees this.
        unsafe { long_rows::map2_in_blocks(length, out, y, dy, gradient) };
    }
}

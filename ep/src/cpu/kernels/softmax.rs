//! Softmax and log-softmax over one axis, and their gradients. Sums are kept in `f64`.
//!
//! The largest element is subtracted first, so that no exponential overflows. For 16-bit floats the exponentials are computed twice,
//! because storing them would round them; so each result is rounded only once. A row with a NaN or `+inf`, or with only `-inf`, gives
//! NaN.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use crate::call::check::{InPlace, check_inferred, checked_operands};
use crate::call::kernel::KernelCall;
use crate::call::operand::Operand;
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::folds;
use crate::cpu::kernels::loop_nest::LoopNest;
use crate::cpu::kernels::number::{DTypeTag, Float, Number};
use crate::cpu::kernels::parallel;
use crate::cpu::kernels::rows::{self, InRow, OutRow};
use crate::cpu::kernels::simd_dispatch;
use crate::errors::error::KernelError;
use crate::tensor::op::Op;
use crate::tensor::params::Axes;

/// The computation of one row.
pub(super) trait Forward {
    const OP: Op;

    /// # Safety
    ///
    /// * The first `length` elements of `row` and `out` are as [`InRow::get`] and [`OutRow::set`] require.
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>);
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
pub(super) fn forward<D, F: Forward>(call: &mut KernelCall<'_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([a], out) = checked_operands(call, [D::DTYPE], D::DTYPE, InPlace::Refused)?;
    check_inferred(F::OP, [a], out, call)?;
    each_row([out, a], call.params.axes, |length, [to, from], [out_stride, a_stride]| {
        let (out, row) = (output::<D::Store>(out, to, out_stride), input::<D::Store>(a, from, a_stride));
        // SAFETY: the row is within both operands, which hold `D`; the output may be written and does not overlap the input.
        simd_dispatch::run_wide(unsafe { ForwardRow::<D::Store, F>::new(length, out, row) });
    });
    Ok(())
}

/// The kernel of [`Op::SoftmaxBackward`] and [`Op::LogSoftmaxBackward`].
pub(super) fn backward<D, B: Backward>(call: &mut KernelCall<'_>) -> Result<(), KernelError>
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

/// One row of [`forward`].
struct ForwardRow<T, F> {
    length: usize,
    out: OutRow<T>,
    row: InRow<T>,
    how: PhantomData<F>,
}

impl<T, F> ForwardRow<T, F> {
    /// # Safety
    ///
    /// * The requirements of [`Forward::row`] hold as long as the value exists.
    #[inline(always)]
    unsafe fn new(length: usize, out: OutRow<T>, row: InRow<T>) -> Self {
        ForwardRow { length, out, row, how: PhantomData }
    }
}

impl<T: Float, F: Forward> WithSimd for ForwardRow<T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // SAFETY: the caller of `new` guarantees this.
        unsafe { F::row(self.length, self.out, self.row) }
    }
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

/// Calls `row` for each row along the one axis of `axes`, with its length, and with the offset of its first element and its stride in
/// each operand. The operands have one shape.
fn each_row<const N: usize>(operands: [&Operand; N], axes: Axes, row: impl Fn(usize, [usize; N], [usize; N]) + Sync) {
    let layouts = operands.map(Operand::layout);
    let dims = layouts[0].shape().dims();
    for axis in axes.iter().filter(|&axis| dims[axis] > 0) {
        let strides = |axis: usize| layouts.map(|layout| layout.strides()[axis]);
        let others = (0..dims.len()).filter(|&other| other != axis);
        let nest = LoopNest::over(others.map(|other| (dims[other], strides(other))));
        let next = nest.row_strides();
        nest.rows_in_parallel(dims[axis] * parallel::LONG, |first, rows| {
            for place in 0..rows {
                let first = std::array::from_fn(|operand| first[operand] + place * next[operand]);
                row(dims[axis], first, strides(axis));
            }
        });
    }
}

/// `exp(x) / sum(exp(x))`.
pub(super) struct Softmax;

impl Forward for Softmax {
    const OP: Op = Op::Softmax;

    #[inline(always)]
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>) {
        // SAFETY: the caller guarantees this.
        let largest = unsafe { largest(length, row) };
        let exp = |x: T| x.wide().sub(largest).exp();
        if T::IS_HALF {
            // SAFETY: the caller guarantees this.
            let sum = T::Wide::from_sum(unsafe { folds::sum_in_blocks(length, row, exp) });
            // SAFETY: the caller guarantees this.
            unsafe { rows::map1_in_blocks(length, out, row, |x| T::rounded(exp(x).div(sum))) };
            return;
        }
        // SAFETY: the caller guarantees this.
        unsafe { rows::map1_in_blocks(length, out, row, |x| T::rounded(exp(x))) };
        let written = InRow { first: out.first.cast_const(), stride: out.stride };
        // SAFETY: `out` holds the elements that were just written, and nothing else accesses it.
        let sum = T::Wide::from_sum(unsafe { sum(length, written) });
        // SAFETY: as above; each element is read before it is written.
        unsafe { rows::map1_in_blocks(length, out, written, |x| T::rounded(x.wide().div(sum))) };
    }
}

/// `x - log(sum(exp(x)))`. The logarithm is computed from the sum in `f64`, because a row with one dominant element has a sum only a
/// little larger than 1.
pub(super) struct LogSoftmax;

impl Forward for LogSoftmax {
    const OP: Op = Op::LogSoftmax;

    #[inline(always)]
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, row: InRow<T>) {
        // SAFETY: the caller guarantees this.
        let largest = unsafe { largest(length, row) };
        // SAFETY: the caller guarantees this.
        let sum = unsafe { folds::sum_in_blocks(length, row, |x| x.wide().sub(largest).exp()) };
        let log = T::Wide::from_sum(sum.ln());
        // SAFETY: the caller guarantees this.
        unsafe { rows::map1_in_blocks(length, out, row, |x| T::rounded(x.wide().sub(largest).sub(log))) };
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
        unsafe { rows::map2_in_blocks(length, out, y, dy, gradient) };
    }
}

/// `dy - exp(y) * sum(dy)`.
pub(super) struct LogSoftmaxBackward;

impl Backward for LogSoftmaxBackward {
    const OP: Op = Op::LogSoftmaxBackward;

    #[inline(always)]
    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>) {
        // SAFETY: the caller guarantees this.
        let sum = unsafe { sum(length, dy) };
        let gradient = |y: T, dy: T| T::rounded(T::Wide::from_sum(dy.wide().to_sum() - y.wide().exp().to_sum() * sum));
        // SAFETY: the caller guarantees this.
        unsafe { rows::map2_in_blocks(length, out, y, dy, gradient) };
    }
}

/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
#[inline(always)]
unsafe fn largest<T: Float>(length: usize, row: InRow<T>) -> T::Wide {
    // SAFETY: the caller guarantees this.
    unsafe { folds::fold(length, row, T::LOWEST, T::LOWEST, T::max, T::max) }.wide()
}

/// The sum of the elements of a row.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
#[inline(always)]
unsafe fn sum<T: Float>(length: usize, row: InRow<T>) -> f64 {
    // SAFETY: the caller guarantees this.
    unsafe { folds::fold(length, row, 0.0, 0.0, |sum, x: T| sum + x.wide().to_sum(), Number::add) }
}

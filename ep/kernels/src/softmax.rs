//! Softmax and log-softmax over one axis, and their gradients. Sums are kept in `f64`.
//!
//! The largest element is subtracted first, so that no exponential overflows. Short rows of 16-bit floats are computed as `f32`; of long ones the exponentials are computed twice,
//! because storing them would round them; so each result is rounded only once. A row with a NaN or `+inf`, or with only `-inf`, gives
//! NaN.

use std::marker::PhantomData;

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op};

use crate::folds;
use crate::functions::Functions as _;
use crate::number::{DTypeTag, Float, Number};
use crate::row_tiles::{GROUP, OfRows, Room, Rows, TILE, dense, each_group, map};
use crate::rows::{InRow, Map2, OutRow, SideBySide};
use crate::simd_dispatch;

/// The last step of one row: it makes results of exponentials, or of elements.
pub(super) trait Forward: Sync {
    const OP: Op;
    const OF_EXPONENTIALS: bool;

    /// Writes results of a row whose largest element is `largest`. The inputs are its elements, and the exponentials of the elements less the largest, whose sum is `sum`; one of them may be the
    /// results.
    ///
    /// # Safety
    ///
    /// * `count` elements may be read from each input on, and written from `out` on.
    unsafe fn finish<T: Float>(
        count: usize,
        out: *mut T::Wide,
        inputs: [*const T::Wide; 2],
        largest: T::Wide,
        sum: f64,
    );
}

/// The computation of the gradient of one row, from the row that [`Forward`] wrote and the gradient of that.
pub(super) trait Backward: Sync {
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
    for axis in call.params.axes.iter() {
        // SAFETY: the operands hold `D` and have one shape; the output may be written and does not overlap the input.
        unsafe { each_group::<D::Store, 2>([out, a], axis, &ForwardRows(PhantomData::<F>)) };
    }
    Ok(())
}

struct ForwardRows<F>(PhantomData<F>);

impl<F: Forward> OfRows<2> for ForwardRows<F> {
    unsafe fn compute<T: Float, R: Float<Wide = T::Wide>>(&self, length: usize, count: usize, rows: &[Rows<T>; 2]) {
        if T::IS_HALF {
            for place in 0..count {
                // SAFETY: the caller guarantees this.
                unsafe { long_row_of_halves::<T, F>(length, rows[0].out(place), rows[1].at(place)) };
            }
            return;
        }
        // Step by step: while a step ends in one row it already begins in the next, so that short rows do not wait for its last results.
        let [out, x] = rows;
        let mut largest = [T::LOWEST.wide(); GROUP];
        let mut sums = [0.0; GROUP];
        for (place, largest) in largest[..count].iter_mut().enumerate() {
            // SAFETY: the caller guarantees this.
            *largest = unsafe { folds::extreme(length, x.at(place), T::LOWEST, T::exceeds) }.wide();
        }
        for (place, &largest) in largest[..count].iter().enumerate() {
            // SAFETY: `map` gives so many elements and results.
            let compute = |count, to, [x]: [_; 1]| unsafe { exponentials::<T>(count, to, x, largest) };
            // SAFETY: the caller guarantees this.
            unsafe { map(length, out.out(place), [x.at(place)], compute) };
        }
        for (place, sum) in sums[..count].iter_mut().enumerate() {
            // SAFETY: the row holds the elements that were just written, and nothing else accesses it.
            *sum = unsafe { folds::sum(length, out.at(place)) };
        }
        for (place, (&largest, &sum)) in largest.iter().zip(&sums).take(count).enumerate() {
            // SAFETY: `map` gives so many elements and results.
            let compute = |count, to, inputs: [_; 2]| unsafe { F::finish::<T>(count, to, inputs, largest, sum) };
            // SAFETY: the caller guarantees this.
            unsafe { map(length, out.out(place), [x.at(place), out.at(place)], compute) };
        }
    }
}

/// Computes a row of 16-bit floats in tiles.
///
/// # Safety
///
/// * The first `length` elements of `row` and `out` are as [`InRow::get`] and [`OutRow::set`] require.
unsafe fn long_row_of_halves<T: Float, F: Forward>(length: usize, out: OutRow<T>, row: InRow<T>) {
    // SAFETY: the caller guarantees this.
    let largest = unsafe { folds::extreme(length, row, T::LOWEST, T::exceeds) }.wide();
    let mut sum = 0.0;
    // SAFETY: `exponential_tiles` gives `count` elements, which nothing else accesses.
    let add = |_, count, tile: OutRow<T::Wide>| sum += unsafe { folds::sum(count, tile.written()) };
    // SAFETY: the caller guarantees this.
    unsafe { exponential_tiles(length, row, largest, add) };
    let compute = |count, to: *mut T::Wide, [x]: [_; 1]| {
        if F::OF_EXPONENTIALS {
            // SAFETY: `map` gives so many elements and results.
            unsafe { exponentials::<T>(count, to, x, largest) };
        }
        // SAFETY: as above.
        unsafe { F::finish::<T>(count, to, [x, to.cast_const()], largest, sum) };
    };
    // SAFETY: the caller guarantees this.
    unsafe { map(length, out, [row], compute) };
}

/// Writes the exponential of each element less `largest`.
///
/// # Safety
///
/// * `count` elements may be read from `x` on, and written from `out` on.
unsafe fn exponentials<T: Float>(count: usize, out: *mut T::Wide, x: *const T::Wide, largest: T::Wide) {
    // SAFETY: the caller guarantees this.
    simd_dispatch::run_wide(unsafe { SideBySide::new(count, out, x, move |x: T::Wide| x.sub(largest).exp()) });
}

/// Calls `visit` with the exponentials of the elements of a row less `largest`, tile by tile: the number of the first of them, their count, and
/// a row of them that `visit` may write.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
pub(super) unsafe fn exponential_tiles<T: Float>(
    length: usize,
    row: InRow<T>,
    largest: T::Wide,
    mut visit: impl FnMut(usize, usize, OutRow<T::Wide>),
) {
    let (mut elements, mut results) = (Room::new(), Room::new());
    for first in (0..length).step_by(TILE) {
        let (count, results) = (TILE.min(length - first), results.row());
        // SAFETY: the caller guarantees these elements.
        let x = unsafe { dense(count, row.from(first), &mut elements) };
        // SAFETY: as above, and there is room for the results.
        unsafe { exponentials::<T>(count, results.first, x, largest) };
        visit(first, count, results);
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
    for axis in call.params.axes.iter() {
        // SAFETY: the operands hold `D` and have one shape; the output may be written and overlaps no input.
        unsafe { each_group::<D::Store, 3>([out, y, dy], axis, &BackwardRows(PhantomData::<B>)) };
    }
    Ok(())
}

struct BackwardRows<B>(PhantomData<B>);

impl<B: Backward> OfRows<3> for BackwardRows<B> {
    unsafe fn compute<T: Float, R: Float<Wide = T::Wide>>(&self, length: usize, count: usize, rows: &[Rows<T>; 3]) {
        let [out, y, dy] = rows;
        for place in 0..count {
            // SAFETY: the caller guarantees this.
            unsafe { B::row(length, out.out(place), y.at(place), dy.at(place)) };
        }
    }
}

/// `exp(x) / sum(exp(x))`.
pub(super) struct Softmax;

impl Forward for Softmax {
    const OP: Op = Op::Softmax;
    const OF_EXPONENTIALS: bool = true;

    #[inline(always)]
    unsafe fn finish<T: Float>(
        count: usize,
        out: *mut T::Wide,
        [_, powers]: [*const T::Wide; 2],
        _: T::Wide,
        sum: f64,
    ) {
        // 1 / sum as a number and its error: a product with both is rounded once, and faster than a division.
        let factor = T::Wide::from_sum(1.0 / sum);
        let error = T::Wide::from_sum((-sum).mul_add(factor.to_sum(), 1.0) * factor.to_sum());
        let scaled = move |x: T::Wide| x.mul_add(factor, x.mul(error));
        // SAFETY: the caller guarantees this.
        simd_dispatch::run_wide(unsafe { SideBySide::new(count, out, powers, scaled) });
    }
}

/// `x - log(sum(exp(x)))`. The logarithm is computed from the sum in `f64`, because a row with one dominant element has a sum only a
/// little larger than 1.
pub(super) struct LogSoftmax;

impl Forward for LogSoftmax {
    const OP: Op = Op::LogSoftmax;
    const OF_EXPONENTIALS: bool = false;

    #[inline(always)]
    unsafe fn finish<T: Float>(
        count: usize,
        out: *mut T::Wide,
        [x, _]: [*const T::Wide; 2],
        largest: T::Wide,
        sum: f64,
    ) {
        let log = T::Wide::from_sum(sum.ln());
        // SAFETY: the caller guarantees this.
        simd_dispatch::run_wide(unsafe { SideBySide::new(count, out, x, move |x: T::Wide| x.sub(largest).sub(log)) });
    }
}

/// `y * (dy - sum(y * dy))`.
pub(super) struct SoftmaxBackward;

impl Backward for SoftmaxBackward {
    const OP: Op = Op::SoftmaxBackward;

    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>) {
        let step = |sum: f64, [y, dy]: [T::Wide; 2]| sum + y.to_sum() * dy.to_sum();
        // SAFETY: the caller guarantees this.
        let sum = unsafe { folds::fold(length, [y, dy], (0.0, 0.0), step, Number::add) };
        let gradient = move |y: T::Wide, dy: T::Wide| y.mul(T::Wide::from_sum(dy.to_sum() - sum));
        let compute = |count, to, inputs: [*const T::Wide; 2]| {
            let [y, dy] = inputs.map(InRow::dense);
            // SAFETY: `map` gives so many elements and results.
            simd_dispatch::run(unsafe { Map2::new(count, OutRow::dense(to), y, dy, gradient) });
        };
        // SAFETY: the caller guarantees this.
        unsafe { map(length, out, [y, dy], compute) };
    }
}

/// `dy - exp(y) * sum(dy)`.
pub(super) struct LogSoftmaxBackward;

impl Backward for LogSoftmaxBackward {
    const OP: Op = Op::LogSoftmaxBackward;

    unsafe fn row<T: Float>(length: usize, out: OutRow<T>, y: InRow<T>, dy: InRow<T>) {
        // SAFETY: the caller guarantees this.
        let sum = unsafe { folds::sum(length, dy) };
        let gradient = move |power: T::Wide, dy: T::Wide| T::Wide::from_sum(dy.to_sum() - power.to_sum() * sum);
        let compute = |count, to: *mut T::Wide, [y, dy]: [*const T::Wide; 2]| {
            // SAFETY: `map` gives so many elements and results.
            simd_dispatch::run_wide(unsafe { SideBySide::new(count, to, y, |y: T::Wide| y.exp()) });
            let powers = InRow::dense(to.cast_const());
            // SAFETY: as above; a power is read before the result at its index is written. All of `to` has been written before `dy` is read: they
            // do not overlap, because the op refuses to run in place.
            simd_dispatch::run(unsafe { Map2::new(count, OutRow::dense(to), powers, InRow::dense(dy), gradient) });
        };
        // SAFETY: the caller guarantees this.
        unsafe { map(length, out, [y, dy], compute) };
    }
}

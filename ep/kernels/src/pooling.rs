//! Poolings of images, and their gradients. Threads share the channels of all images.
//!
//! A maximum is the first largest element of its window in row-major order, where a NaN counts as the largest. A mean is that of a whole window,
//! whose padding is zeros; it is added up in `f64` and rounded once, and so are gradients.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::backend::{WindowAxis, pooling_axes};
use streamvm_ep::{KernelCall, KernelError, Op, Operand};

use crate::lanes;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::parallel;
use crate::rows::{InRow, OutRow, input, output};
use crate::simd_dispatch;

/// One channel of one image for reading: its elements and their strides.
#[derive(Copy, Clone)]
pub(super) struct Plane<T> {
    elements: InRow<T>,
    strides: [usize; 2],
}

impl<T: Copy> Plane<T> {
    /// The channel of an operand that begins `first` elements behind its first.
    fn of(operand: &Operand, first: usize) -> Plane<T> {
        let strides = operand.layout().strides();
        Plane { elements: input(operand, first, 1), strides: [strides[2], strides[3]] }
    }

    /// # Safety
    ///
    /// * The element is one of the channel, and as [`InRow::get`] requires.
    #[inline(always)]
    unsafe fn get(self, y: usize, x: usize) -> T {
        // SAFETY: the caller guarantees this.
        unsafe { self.elements.get(y * self.strides[0] + x * self.strides[1]) }
    }
}

/// One channel of one image for writing.
struct Target<T> {
    elements: OutRow<T>,
    strides: [usize; 2],
}

impl<T: Copy> Target<T> {
    fn of(operand: &Operand, first: usize) -> Target<T> {
        let strides = operand.layout().strides();
        Target { elements: output(operand, first, 1), strides: [strides[2], strides[3]] }
    }

    /// # Safety
    ///
    /// * The element is one of the channel, and as [`OutRow::set`] requires.
    #[inline(always)]
    unsafe fn set(&self, y: usize, x: usize, value: T) {
        // SAFETY: the caller guarantees this.
        unsafe { self.elements.set(y * self.strides[0] + x * self.strides[1], value) };
    }
}

/// How a pooling computes its result from the elements of a window that are inside of the input, one after the other in row-major order.
pub(super) trait Pool {
    const OP: Op;

    /// The state after some elements.
    type Sum<T: Float>: Copy;

    fn begin<T: Float>(first: T) -> Self::Sum<T>;
    fn take<T: Float>(sum: Self::Sum<T>, element: T) -> Self::Sum<T>;

    /// The result of a window of `elements` elements, with those outside of the input.
    fn result<T: Float>(sum: Self::Sum<T>, elements: usize) -> T;
}

/// The largest element.
pub(super) struct Largest;

impl Pool for Largest {
    const OP: Op = Op::MaxPool2d;
    type Sum<T: Float> = T;

    #[inline(always)]
    fn begin<T: Float>(first: T) -> T {
        first
    }

    #[inline(always)]
    fn take<T: Float>(found: T, element: T) -> T {
        if is_larger(element.wide(), found.wide()) { element } else { found }
    }

    #[inline(always)]
    fn result<T: Float>(found: T, _: usize) -> T {
        found
    }
}

/// The mean.
pub(super) struct Average;

impl Pool for Average {
    const OP: Op = Op::AvgPool2d;
    type Sum<T: Float> = f64;

    #[inline(always)]
    fn begin<T: Float>(first: T) -> f64 {
        // Of zeros with a sign the mean is 0.
        0.0 + first.to_f64()
    }

    #[inline(always)]
    fn take<T: Float>(sum: f64, element: T) -> f64 {
        sum + element.to_f64()
    }

    #[inline(always)]
    fn result<T: Float>(sum: f64, elements: usize) -> T {
        T::from_f64(sum / elements as f64)
    }
}

/// Whether an element takes the place of the largest one before it; a NaN counts as the largest.
#[inline(always)]
fn is_larger<W: Float>(element: W, found: W) -> bool {
    element.compared() > found.compared() || (element.is_nan() && !found.is_nan())
}

/// The result of the window of elements at `rows` and `columns`.
///
/// # Safety
///
/// * Neither range is empty, and their elements are as [`Plane::get`] requires.
#[inline(always)]
unsafe fn window<P: Pool, T: Float>(plane: Plane<T>, rows: Range<usize>, columns: Range<usize>, elements: usize) -> T {
    // SAFETY: the caller guarantees this.
    let mut sum = P::begin(unsafe { plane.get(rows.start, columns.start) });
    for y in rows.clone() {
        for x in columns.start + usize::from(y == rows.start)..columns.end {
            // SAFETY: the caller guarantees this.
            sum = P::take(sum, unsafe { plane.get(y, x) });
        }
    }
    P::result(sum, elements)
}

/// The windows that are computed side by side.
const BESIDE: usize = 8;

/// The results of [`BESIDE`] windows at `rows`, each `STRIDE` columns after the one before; the first begins at `column`.
///
/// # Safety
///
/// * `rows` is not empty. The elements of a row of the channel lie side by side. From `column` on it has as many for each column of a window in steps of `STRIDE`, and those are as
///   [`Plane::get`] requires.
#[inline(always)]
unsafe fn windows<P: Pool, T: Float, const STRIDE: usize>(
    plane: Plane<T>,
    rows: Range<usize>,
    column: usize,
    width: usize,
    elements: usize,
) -> [T; BESIDE] {
    let next = |y: usize, x: usize| -> [T; BESIDE] {
        // All elements between the windows as well: the compiler takes every other one from whole vectors.
        let first = plane.elements.first.wrapping_add(y * plane.strides[0] + column + x / STRIDE * STRIDE);
        // SAFETY: the caller guarantees these elements.
        let all = unsafe { first.cast::<[[T; STRIDE]; BESIDE]>().read_unaligned() };
        lanes::array(|place| all[place][x % STRIDE])
    };
    let first = next(rows.start, 0);
    let mut sums: [P::Sum<T>; BESIDE] = lanes::array(|place| P::begin(first[place]));
    for y in rows.clone() {
        for x in usize::from(y == rows.start)..width {
            let elements = next(y, x);
            sums = lanes::array(|place| P::take(sums[place], elements[place]));
        }
    }
    lanes::array(|place| P::result(sums[place], elements))
}

/// The place of the first largest element; a NaN counts as the largest.
///
/// # Safety
///
/// * As for [`Pool::window`].
#[inline(always)]
unsafe fn largest<T: Float>(plane: Plane<T>, rows: Range<usize>, columns: Range<usize>) -> [usize; 2] {
    let mut place = [rows.start, columns.start];
    // SAFETY: the caller guarantees this.
    let mut found = unsafe { plane.get(rows.start, columns.start) }.wide();
    for y in rows {
        for x in columns.clone() {
            // SAFETY: the caller guarantees this.
            let element = unsafe { plane.get(y, x) }.wide();
            if is_larger(element, found) {
                (found, place) = (element, [y, x]);
            }
        }
    }
    place
}

/// The kernel of [`Op::MaxPool2d`] and [`Op::AvgPool2d`].
pub(super) fn pool<D, P: Pool>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([x], out) = checked_operands(call, [D::DTYPE], D::DTYPE, InPlace::Refused)?;
    check_inferred(P::OP, [x], out, call)?;
    let [vertical, horizontal] = pooling_axes(P::OP, x.layout().shape(), call.params.checked_pooling(P::OP)?)?;
    each_plane([out, x], work_of([vertical, horizontal]), |[to, from]| {
        let (out, plane) = (Target::<D::Store>::of(out, to), Plane::<D::Store>::of(x, from));
        simd_dispatch::run(PoolPlane::<P, D::Store> { out, plane, axes: [vertical, horizontal], pool: PhantomData });
    });
    Ok(())
}

/// The pooling of a channel, which only [`pool`] makes, and computes at once.
struct PoolPlane<P, T> {
    out: Target<T>,
    plane: Plane<T>,
    axes: [WindowAxis; 2],
    pool: PhantomData<P>,
}

impl<P: Pool, T: Float> WithSimd for PoolPlane<P, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [vertical, horizontal] = self.axes;
        let elements = vertical.window * horizontal.window;
        // Windows that are inside of the input, with all elements that are read with them, may be computed side by side.
        let read = horizontal.window.div_ceil(horizontal.stride) * horizontal.stride + (BESIDE - 1) * horizontal.stride;
        let side_by_side = self.plane.strides[1] == 1 && horizontal.stride <= 2 && !S::IS_SCALAR;
        for y in 0..vertical.output {
            let mut x = 0;
            while x < horizontal.output {
                let (rows, columns) = (vertical.inputs_under(y), horizontal.inputs_under(x));
                let is_inside = columns.len() == horizontal.window && columns.start + read <= horizontal.input;
                if side_by_side && is_inside && x + BESIDE <= horizontal.output {
                    let (plane, width) = (self.plane, horizontal.window);
                    // A function that is called by its address would be compiled for the oldest processor.
                    let results = match horizontal.stride {
                        // SAFETY: the input has these rows and columns, and inference refuses windows without elements.
                        1 => unsafe { windows::<P, T, 1>(plane, rows, columns.start, width, elements) },
                        // SAFETY: as above.
                        _ => unsafe { windows::<P, T, 2>(plane, rows, columns.start, width, elements) },
                    };
                    for (place, result) in results.into_iter().enumerate() {
                        // SAFETY: as below.
                        unsafe { self.out.set(y, x + place, result) };
                    }
                    x += BESIDE;
                    continue;
                }
                // SAFETY: the ranges are inside of the input, and inference refuses windows without elements.
                let result = unsafe { window::<P, T>(self.plane, rows, columns, elements) };
                // SAFETY: the output may be written and does not overlap the input, and no other call writes this channel.
                unsafe { self.out.set(y, x, result) };
                x += 1;
            }
        }
    }
}

/// The [work](parallel) of one channel: an element of each window. Sizes of empty operands may have any product.
fn work_of([vertical, horizontal]: [WindowAxis; 2]) -> usize {
    let elements = vertical.window * horizontal.window;
    (vertical.output * horizontal.output).saturating_mul(elements).saturating_mul(parallel::LIGHT)
}

/// Calls `visit` with the place of the first element of each channel of each image in each operand. A channel takes `work`.
fn each_plane<const N: usize>(operands: [&Operand; N], work: usize, visit: impl Fn([usize; N]) + Sync) {
    if operands.iter().any(|operand| operand.layout().elements() == 0) {
        return;
    }
    let dims = operands[0].layout().shape().dims();
    let nest =
        LoopNest::over(&mut (0..2).map(|axis| (dims[axis], operands.map(|operand| operand.layout().strides()[axis]))));
    let next = nest.row_strides();
    nest.rows_in_parallel(work.max(1), |first, count| {
        for place in 0..count {
            visit(lanes::array(|operand| first[operand] + place * next[operand]));
        }
    });
}

/// The operands of a gradient, after all checks, and height and width of its pooling.
#[allow(clippy::type_complexity, reason = "what both gradients begin with")]
fn gradient<'a, D: DTypeTag>(
    op: Op,
    call: &'a KernelCall<'_, '_>,
) -> Result<([&'a Operand<'a>; 2], &'a Operand<'a>, [WindowAxis; 2]), KernelError> {
    let (inputs, out) = checked_operands(call, [D::DTYPE; 2], D::DTYPE, InPlace::Refused)?;
    check_inferred(op, inputs, out, call)?;
    Ok((inputs, out, pooling_axes(op, inputs[0].layout().shape(), call.params.checked_pooling(op)?)?))
}

/// The kernel of [`Op::MaxPool2dBackward`].
pub(super) fn max_backward<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([x, dy], out, [vertical, horizontal]) = gradient::<D>(Op::MaxPool2dBackward, call)?;
    let (height, width) = (vertical.input, horizontal.input);
    let work = work_of([vertical, horizontal]).saturating_add(height * width);
    each_plane([out, x, dy], work, |[to, from, from_dy]| {
        let (out, plane) = (Target::<D::Store>::of(out, to), Plane::<D::Store>::of(x, from));
        let dy = Plane::<D::Store>::of(dy, from_dy);
        let mut sums = vec![0.0; height * width];
        for y in 0..vertical.output {
            for x in 0..horizontal.output {
                // SAFETY: as in `pool`.
                let [row, column] = unsafe { largest(plane, vertical.inputs_under(y), horizontal.inputs_under(x)) };
                // SAFETY: as in `pool`, for the gradient.
                sums[row * width + column] += unsafe { dy.get(y, x) }.to_f64();
            }
        }
        for (place, &sum) in sums.iter().enumerate() {
            // SAFETY: as in `pool`.
            unsafe { out.set(place / width, place % width, D::Store::from_f64(sum)) };
        }
    });
    Ok(())
}

/// The kernel of [`Op::AvgPool2dBackward`].
pub(super) fn avg_backward<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let ([_, dy], out, [vertical, horizontal]) = gradient::<D>(Op::AvgPool2dBackward, call)?;
    let elements = vertical.window * horizontal.window;
    let work = work_of([vertical, horizontal]).saturating_add(vertical.input * horizontal.input);
    each_plane([out, dy], work, |[to, from]| {
        let (out, dy) = (Target::<D::Store>::of(out, to), Plane::<D::Store>::of(dy, from));
        for y in 0..vertical.input {
            for x in 0..horizontal.input {
                let mut sum = 0.0;
                for row in vertical.positions_over(y) {
                    for column in horizontal.positions_over(x) {
                        // SAFETY: the position is one of the gradient, which holds `D` and which nothing writes.
                        sum += unsafe { dy.get(row, column) }.to_f64();
                    }
                }
                // SAFETY: as in `pool`.
                unsafe { out.set(y, x, D::Store::from_f64(sum / elements as f64)) };
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// The results of a channel, side by side where that is possible and window by window.
    fn both<P: Pool, T: Float>(elements: &[T], axes: [WindowAxis; 2]) -> [Vec<u64>; 2] {
        let [vertical, horizontal] = axes;
        let plane = Plane { elements: InRow { first: elements.as_ptr(), stride: 1 }, strides: [horizontal.input, 1] };
        let mut results = vec![T::ZERO; vertical.output * horizontal.output];
        let out =
            Target { elements: OutRow { first: results.as_mut_ptr(), stride: 1 }, strides: [horizontal.output, 1] };
        simd_dispatch::run(PoolPlane::<P, T> { out, plane, axes, pool: PhantomData });
        let count = vertical.window * horizontal.window;
        let alone = (0..vertical.output).flat_map(|y| (0..horizontal.output).map(move |x| (y, x))).map(|(y, x)| {
            // SAFETY: the ranges are inside of the elements.
            unsafe { window::<P, T>(plane, vertical.inputs_under(y), horizontal.inputs_under(x), count) }
        });
        let bits = |result: T| result.to_f64().to_bits();
        [results.iter().copied().map(bits).collect(), alone.map(bits).collect()]
    }

    fn check<T: Float>() {
        let element = |i: usize| match i * 7919 % 97 {
            0 => f64::NAN,
            1 | 2 => -0.0,
            3 => 0.0,
            other => (other as f64 - 50.0) / 8.0,
        };
        for stride in 1..4 {
            for size in 1..6 {
                for padding in 0..=size / 2 {
                    for input in [5usize, 8, 15, 16, 17, 19, 40] {
                        let output = (input + 2 * padding).checked_sub(size).map_or(0, |rest| rest / stride + 1);
                        let axis = WindowAxis { input, window: size, output, stride, padding, dilation: 1 };
                        let vertical =
                            WindowAxis { input: 6, window: 2, output: 3, stride: 2, padding: 0, dilation: 1 };
                        let elements: Vec<T> = (0..6 * input).map(|i| T::from_f64(element(i))).collect();
                        let [found, expected] = both::<Largest, T>(&elements, [vertical, axis]);
                        assert_eq!(found, expected, "the largest: {axis:?}");
                        let [found, expected] = both::<Average, T>(&elements, [vertical, axis]);
                        assert_eq!(found, expected, "the mean: {axis:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn windows_side_by_side_have_the_bits_of_single_ones() {
        check::<f32>();
        check::<f64>();
        check::<f16>();
    }
}

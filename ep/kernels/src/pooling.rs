//! Poolings of images, and their gradients. Threads share the channels of all images.
//!
//! A maximum is the first largest element of its window in row-major order, where a NaN counts as the largest. A mean is that of a whole window,
//! whose padding is zeros; it is added up in `f64` and rounded once, and so are gradients.

use std::ops::Range;

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::backend::{WindowAxis, pooling_axes};
use streamvm_ep::{KernelCall, KernelError, Op, Operand};

use crate::lanes;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::parallel;
use crate::rows::{InRow, OutRow, input, output};

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

/// How a pooling computes its result from the elements of a window that are inside of the input.
pub(super) trait Pool {
    const OP: Op;

    /// The result of a window of `elements` elements, of which those at `rows` and `columns` are inside of the input.
    ///
    /// # Safety
    ///
    /// * Neither range is empty, and their elements are as [`Plane::get`] requires.
    unsafe fn window<T: Float>(plane: Plane<T>, rows: Range<usize>, columns: Range<usize>, elements: usize) -> T;
}

/// The largest element.
pub(super) struct Largest;

impl Pool for Largest {
    const OP: Op = Op::MaxPool2d;

    #[inline(always)]
    unsafe fn window<T: Float>(plane: Plane<T>, rows: Range<usize>, columns: Range<usize>, _: usize) -> T {
        // SAFETY: the caller guarantees this.
        let [y, x] = unsafe { largest(plane, rows, columns) };
        // SAFETY: the place is one of the window.
        unsafe { plane.get(y, x) }
    }
}

/// The mean.
pub(super) struct Average;

impl Pool for Average {
    const OP: Op = Op::AvgPool2d;

    #[inline(always)]
    unsafe fn window<T: Float>(plane: Plane<T>, rows: Range<usize>, columns: Range<usize>, elements: usize) -> T {
        let mut sum = 0.0;
        for y in rows {
            for x in columns.clone() {
                // SAFETY: the caller guarantees this.
                sum += unsafe { plane.get(y, x) }.to_f64();
            }
        }
        T::from_f64(sum / elements as f64)
    }
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
            if element.compared() > found.compared() || (element.is_nan() && !found.is_nan()) {
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
    let elements = vertical.window * horizontal.window;
    each_plane([out, x], work_of([vertical, horizontal]), |[to, from]| {
        let (out, plane) = (Target::<D::Store>::of(out, to), Plane::<D::Store>::of(x, from));
        for y in 0..vertical.output {
            for x in 0..horizontal.output {
                let (rows, columns) = (vertical.inputs_under(y), horizontal.inputs_under(x));
                // SAFETY: the ranges are inside of the input, which holds `D`, and inference refuses windows without elements.
                let result = unsafe { P::window(plane, rows, columns, elements) };
                // SAFETY: the output holds `D`, may be written and does not overlap the input, and no other call writes this channel.
                unsafe { out.set(y, x, result) };
            }
        }
    });
    Ok(())
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

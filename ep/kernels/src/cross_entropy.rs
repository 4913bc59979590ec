//! The cross entropy of rows along the innermost axis, and its gradient. As softmax does it: the largest element is subtracted first, and sums are kept in `f64`.
//!
//! Exponentials are computed tile by tile in scratch memory on the stack, because an output of one element for each row has no room for them. A row whose target is
//! no class takes no part: its loss and its gradient are zeros, whatever its elements are.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op, Operand};

use crate::folds;
use crate::functions::Functions as _;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Float, Number};
use crate::row_tiles::round_row;
use crate::rows::{self, InRow, OutRow, SideBySide, input, output};
use crate::softmax::exponential_tiles;
use crate::{parallel, simd_dispatch};

/// The class that a target is, out of `classes`.
fn class(target: i64, classes: usize) -> Option<usize> {
    usize::try_from(target).ok().filter(|&class| class < classes)
}

/// The largest element of a row, and the sum of the exponentials of the elements less the largest.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires; there is one.
unsafe fn total<T: Float>(length: usize, row: InRow<T>) -> (T::Wide, f64) {
    // SAFETY: the caller guarantees this.
    let largest = unsafe { folds::extreme(length, row, T::LOWEST, T::exceeds) }.wide();
    let mut sum = 0.0;
    let add = |_, count, tile: OutRow<T::Wide>| {
        // SAFETY: `exponential_tiles` gives `count` elements, which nothing else accesses.
        sum += unsafe { folds::sum(count, tile.written()) };
    };
    // SAFETY: the caller guarantees this.
    unsafe { exponential_tiles(length, row, largest, add) };
    (largest, sum)
}

/// The kernel of [`Op::CrossEntropy`].
pub(super) fn cross_entropy<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let op = Op::CrossEntropy;
    let ([logits, targets], out) = checked_operands(call, [D::DTYPE, DType::I64], D::DTYPE, InPlace::Refused)?;
    check_inferred(op, [logits, targets], out, call)?;
    let (dims, from) = (logits.layout().shape().dims(), logits.layout().strides());
    let (last, [to, at]) = (dims.len() - 1, [out, targets].map(|operand| operand.layout().strides()));
    let classes = dims[last];
    let nest = LoopNest::over(&mut (0..last).map(|axis| (dims[axis], [to[axis], from[axis], at[axis]])));
    let next = nest.row_strides();
    nest.rows_in_parallel((classes * parallel::LONG).max(1), |first, count| {
        for place in 0..count {
            let [to, from, at] = [0, 1, 2].map(|operand| first[operand] + place * next[operand]);
            let (out, row) = (output::<D::Store>(out, to, 1), input::<D::Store>(logits, from, class_stride(logits)));
            // SAFETY: the loop nest stays within the operands, which hold `D` and `i64`.
            let target = unsafe { input::<i64>(targets, at, 1).get(0) };
            let loss = class(target, classes).map_or(0.0, |class| {
                // SAFETY: as above.
                let (largest, sum) = unsafe { total(classes, row) };
                // SAFETY: as above, and the class is one of the row.
                let logit = unsafe { row.get(class) };
                sum.ln() + (largest.to_f64() - logit.to_f64())
            });
            // SAFETY: as above; the output may be written and overlaps no input.
            unsafe { out.set(0, D::Store::from_f64(loss)) };
        }
    });
    Ok(())
}

/// The stride of the innermost axis.
fn class_stride(operand: &Operand) -> usize {
    operand.layout().strides().last().copied().unwrap_or(1)
}

/// The kernel of [`Op::CrossEntropyBackward`].
pub(super) fn cross_entropy_backward<D>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Float,
{
    let op = Op::CrossEntropyBackward;
    let dtypes = [D::DTYPE, DType::I64, D::DTYPE];
    let ([logits, targets, dy], out) = checked_operands(call, dtypes, D::DTYPE, InPlace::Refused)?;
    check_inferred(op, [logits, targets, dy], out, call)?;
    let (dims, last) = (logits.layout().shape().dims(), logits.layout().shape().rank() - 1);
    let classes = dims[last];
    let strides = [out, logits, targets, dy].map(|operand| operand.layout().strides());
    let nest = LoopNest::over(&mut (0..last).map(|axis| (dims[axis], strides.map(|strides| strides[axis]))));
    let next = nest.row_strides();
    nest.rows_in_parallel((classes * 2 * parallel::LONG).max(1), |first, count| {
        for place in 0..count {
            let [to, from, at, of] = [0, 1, 2, 3].map(|operand| first[operand] + place * next[operand]);
            let out = output::<D::Store>(out, to, class_stride(out));
            let row = input::<D::Store>(logits, from, class_stride(logits));
            // SAFETY: the loop nest stays within the operands, which hold `D` and `i64`.
            let target = unsafe { input::<i64>(targets, at, 1).get(0) };
            // SAFETY: as above.
            let dy = unsafe { input::<D::Store>(dy, of, 1).get(0) }.to_f64();
            match class(target, classes) {
                // SAFETY: as above, and the class is one of the row; the output may be written and overlaps no input.
                Some(class) => unsafe { gradient(classes, out, row, class, dy) },
                // SAFETY: as above.
                None => unsafe { rows::fill(classes, out, D::Store::ZERO) },
            }
        }
    });
    Ok(())
}

/// Writes the gradient of a row: the softmax, less 1 at `class`, times `dy`.
///
/// # Safety
///
/// * The first `classes` elements of `row` and `out` are as [`InRow::get`] and [`OutRow::set`] require, and `class` is below `classes`.
unsafe fn gradient<T: Float>(classes: usize, out: OutRow<T>, row: InRow<T>, class: usize, dy: f64) {
    // SAFETY: the caller guarantees this.
    let (largest, sum) = unsafe { total(classes, row) };
    let factor = dy / sum;
    let write = |first, count, tile: OutRow<T::Wide>| {
        let (out, scaled) = (out.from(first), move |x: T::Wide| T::wide_of(x.to_f64() * factor));
        let is_direct = !T::IS_HALF && out.stride == 1;
        let to = if is_direct { out.first.cast() } else { tile.first };
        // SAFETY: `exponential_tiles` gives `count` elements, which nothing else accesses; the caller guarantees the elements of `out`.
        simd_dispatch::run_wide(unsafe { SideBySide::new(count, to, tile.first.cast_const(), scaled) });
        if !is_direct {
            // SAFETY: as above.
            unsafe { round_row(count, out, to) };
        }
    };
    // SAFETY: the caller guarantees this.
    unsafe { exponential_tiles(classes, row, largest, write) };
    // SAFETY: the caller guarantees this.
    let exponential = unsafe { row.get(class) }.wide().sub(largest).exp().to_f64();
    // SAFETY: the caller guarantees this.
    unsafe { out.set(class, T::from_f64((exponential - sum) * factor)) };
}

//! The index of the largest element on one axis: the first of equal elements; a NaN counts as the largest.
//!
//! In contiguous memory the largest element is found first, side by side in vectors, and then its place.

use crate::call::check::{InPlace, check_inferred, checked_operands};
use crate::call::kernel::KernelCall;
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::folds;
use crate::cpu::kernels::number::{DTypeTag, Number};
use crate::cpu::kernels::reduce::{BLOCK, FEW, fold_blocks, kept_nest};
use crate::cpu::kernels::rows::InRow;
use crate::errors::error::KernelError;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;

/// The kernel of [`Op::ArgMax`].
pub(super) fn argmax<D: DTypeTag>(call: &mut KernelCall<'_>) -> Result<(), KernelError> {
    let ([a], out) = checked_operands(call, [D::DTYPE], DType::I64, InPlace::Refused)?;
    check_inferred(Op::ArgMax, [a], out, call)?;
    let kept = kept_nest(a.layout(), out.layout(), call.params);
    let [out_stride, kept_stride] = kept.row_strides();
    for axis in call.params.axes.iter() {
        let length = a.layout().shape().dims()[axis];
        let stride = a.layout().strides()[axis];
        // Few outputs are found one after the other, each by all threads.
        let work = if out.layout().elements() < FEW { 0 } else { length };
        kept.rows_in_parallel(work, |[to, from], outputs| {
            let out = output::<i64>(out, to, out_stride);
            for place in 0..outputs {
                let row = input::<D::Store>(a, from + place * kept_stride, stride);
                // SAFETY: the loop nest and the axis stay within the input, which holds `D`. The axis has elements, because inference
                // refuses an empty one.
                let index = unsafe { first_largest(length, row) };
                // SAFETY: the loop nest stays within the output, which holds `i64` and may be written.
                unsafe { out.set(place, index as i64) };
            }
        });
    }
    Ok(())
}

/// The first index of the largest element: of the first block whose largest element no other block exceeds.
///
/// # Safety
///
/// * `length` is not 0.
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn first_largest<T: Number>(length: usize, row: InRow<T>) -> usize {
    if row.stride != 1 {
        // SAFETY: the caller guarantees this.
        return unsafe { one_by_one(length, row) };
    }
    if length <= BLOCK {
        // SAFETY: the caller guarantees this.
        let largest = unsafe { largest(length, row) };
        // SAFETY: the caller guarantees this.
        return unsafe { first_equal(length, row, largest) };
    }
    // SAFETY: `fold_blocks` calls it for parts of the row, which the caller guarantees.
    let blocks = fold_blocks(length, row, T::LOWEST, |length, row| unsafe { largest(length, row) });
    let states = InRow { first: blocks.as_ptr(), stride: 1 };
    // SAFETY: the states outlive the call.
    let block = unsafe { one_by_one(blocks.len(), states) };
    let first = block * BLOCK;
    // SAFETY: the caller guarantees the elements of this block.
    first + unsafe { first_equal(BLOCK.min(length - first), row.from(first), blocks[block]) }
}

/// The largest element of a row.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn largest<T: Number>(length: usize, row: InRow<T>) -> T {
    // SAFETY: the caller guarantees this.
    unsafe { folds::extreme(length, row, T::LOWEST, T::exceeds) }
}

/// The first index of `largest`, which is in the row; a NaN is any NaN.
///
/// # Safety
///
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn first_equal<T: Number>(length: usize, row: InRow<T>, largest: T) -> usize {
    match largest.is_nan() {
        // SAFETY: the caller guarantees this.
        true => unsafe { folds::position(length, row, T::is_nan) },
        // SAFETY: as above.
        false => unsafe { folds::position(length, row, |x| x == largest) },
    }
}

/// [`first_largest`] for any stride.
///
/// # Safety
///
/// * As for [`first_largest`].
unsafe fn one_by_one<T: Number>(length: usize, row: InRow<T>) -> usize {
    // SAFETY: the caller guarantees this.
    let mut largest = unsafe { row.get(0) };
    let mut found = 0;
    for index in 1..length {
        if largest.is_nan() {
            break;
        }
        // SAFETY: the caller guarantees this for every index below `length`, and `index < length`.
        let element = unsafe { row.get(index) };
        if element > largest || element.is_nan() {
            largest = element;
            found = index;
        }
    }
    found
}

//! The index of the largest element on one axis: the first of equal elements; a NaN counts as the largest.

use crate::call::check::{InPlace, check_inferred, checked_operands};
use crate::call::kernel::KernelCall;
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::number::{DTypeTag, Number};
use crate::cpu::kernels::reduce::kept_nest;
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
        kept.rows(|[to, from]| {
            let out = output::<i64>(out, to, out_stride);
            for place in 0..kept.row_length() {
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

/// # Safety
///
/// * `length` is not 0.
/// * The first `length` elements of `row` are as [`InRow::get`] requires.
unsafe fn first_largest<T: Number>(length: usize, row: InRow<T>) -> usize {
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

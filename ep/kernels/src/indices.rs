//! Indices: integers of the dtypes that ops take as places of rows or elements.

use streamvm_ep::{DType, KernelError, Op, Operand};

use crate::rows::input;

/// The index at `offset`, in elements from the first.
///
/// # Safety
///
/// * `indices` holds `i32`, `i64` or `u8`, aligned, and the offset is that of one of its elements.
#[inline(always)]
pub(super) unsafe fn at(indices: &Operand, offset: usize) -> i64 {
    match indices.dtype() {
        // SAFETY: the caller guarantees this.
        DType::I32 => i64::from(unsafe { input::<i32>(indices, offset, 1).get(0) }),
        // SAFETY: as above.
        DType::U8 => i64::from(unsafe { input::<u8>(indices, offset, 1).get(0) }),
        // SAFETY: as above.
        _ => unsafe { input::<i64>(indices, offset, 1).get(0) },
    }
}

/// Returns the error of `op` for the first index, in row-major order, that is negative or not below `end`.
///
/// # Safety
///
/// * `indices` holds `i32`, `i64` or `u8`, aligned.
pub(super) unsafe fn check(op: Op, indices: &Operand, end: usize) -> Result<(), KernelError> {
    let (dims, strides) = (indices.layout().shape().dims(), indices.layout().strides());
    // Divisions for each index would take longer than to copy the elements.
    let is_contiguous = indices.is_contiguous();
    for index in 0..indices.layout().elements() {
        let mut offset = index;
        if !is_contiguous {
            let mut left = index;
            offset = 0;
            for (&size, &stride) in dims.iter().zip(strides).rev() {
                offset += left % size * stride;
                left /= size;
            }
        }
        // SAFETY: the offset is that of an index of the view; the caller guarantees the rest.
        let row = unsafe { at(indices, offset) };
        if !usize::try_from(row).is_ok_and(|row| row < end) {
            return Err(KernelError::RowOutOfRange { op, index, row });
        }
    }
    Ok(())
}

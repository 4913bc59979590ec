//! Index select: rows of a table, as indices give them. All indices are checked before anything is written.

use crate::call::check::{InPlace, check_inferred, checked_operands};
use crate::call::kernel::KernelCall;
use crate::call::operand::Operand;
use crate::cpu::kernels::elementwise::{input, output};
use crate::cpu::kernels::loop_nest::LoopNest;
use crate::cpu::kernels::parallel;
use crate::cpu::kernels::rows;
use crate::errors::error::KernelError;
use crate::tensor::dtype::DType;
use crate::tensor::error::OpError;
use crate::tensor::op::Op;

/// The kernel of [`Op::IndexSelect`], for a table of any dtype.
pub(super) fn index_select(call: &mut KernelCall<'_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let by = call.operands.get(1).map_or(DType::I64, Operand::dtype);
    let ([table, indices], out) = checked_operands(call, [dtype, by], dtype, InPlace::Refused)?;
    check_inferred(Op::IndexSelect, [table, indices], out, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    // For every arm: `indices` holds elements of this type, and `checked_operands` has checked the operands.
    match by {
        // SAFETY: see above.
        DType::I32 => unsafe { by_index::<i32>(table, indices, out) },
        // SAFETY: see above.
        DType::I64 => unsafe { by_index::<i64>(table, indices, out) },
        // SAFETY: see above.
        DType::U8 => unsafe { by_index::<u8>(table, indices, out) },
        found => Err(OpError::IndexDType { op: Op::IndexSelect, found }.into()),
    }
}

/// Checks the indices, and copies elements of the size that the table has.
///
/// # Safety
///
/// * `indices` holds elements stored as `I`. `table` and `out` hold elements of one dtype. All are aligned.
/// * `out` may be written, overlaps no input, and has the axes of `indices`, then the columns of `table`. It has elements.
unsafe fn by_index<I>(table: &Operand, indices: &Operand, out: &Operand) -> Result<(), KernelError>
where
    I: Copy + Into<i64> + Sync,
{
    // SAFETY: the caller guarantees this.
    unsafe { check::<I>(table, indices) }?;
    // For every arm: the indices are in range, elements of this size and alignment are copied as they are, and the caller guarantees the rest.
    match table.dtype().size() {
        // SAFETY: see above.
        1 => unsafe { select::<I, u8>(table, indices, out) },
        // SAFETY: see above.
        2 => unsafe { select::<I, u16>(table, indices, out) },
        // SAFETY: see above.
        4 => unsafe { select::<I, u32>(table, indices, out) },
        // SAFETY: see above.
        _ => unsafe { select::<I, u64>(table, indices, out) },
    }
    Ok(())
}

/// Returns an error for the first index, in row-major order, that is no row of the table.
///
/// # Safety
///
/// * `indices` holds elements stored as `I`, aligned.
unsafe fn check<I: Copy + Into<i64>>(table: &Operand, indices: &Operand) -> Result<(), KernelError> {
    let rows = table.layout().shape().dims()[0];
    let (dims, strides) = (indices.layout().shape().dims(), indices.layout().strides());
    for index in 0..indices.layout().elements() {
        let mut left = index;
        let mut offset = 0;
        for (&size, &stride) in dims.iter().zip(strides).rev() {
            offset += left % size * stride;
            left /= size;
        }
        // SAFETY: the offset is that of an index of the view; the caller guarantees the rest.
        let row: i64 = unsafe { input::<I>(indices, offset, 1).get(0) }.into();
        if !usize::try_from(row).is_ok_and(|row| row < rows) {
            return Err(KernelError::RowOutOfRange { op: Op::IndexSelect, index, row });
        }
    }
    Ok(())
}

/// Copies the rows.
///
/// # Safety
///
/// * As for [`by_index`]; each index is a row of the table, and elements have the size of `T`.
unsafe fn select<I: Copy + Into<i64> + Sync, T: Copy + Send>(table: &Operand, indices: &Operand, out: &Operand) {
    let (dims, rank) = (indices.layout().shape().dims(), indices.layout().shape().rank());
    let (to, at) = (out.layout().strides(), indices.layout().strides());
    let columns = table.layout().shape().dims()[1];
    let [row_stride, column_stride] = [0, 1].map(|axis| table.layout().strides()[axis]);
    let nest = LoopNest::over((0..rank).map(|axis| (dims[axis], [to[axis], at[axis]])));
    let [to_next, at_next] = nest.row_strides();
    nest.rows_in_parallel(columns * parallel::LIGHT, |[first_to, first_at], count| {
        let indices = input::<I>(indices, first_at, at_next);
        for place in 0..count {
            // SAFETY: the loop nest stays within the indices; the caller guarantees the rest.
            let row: i64 = unsafe { indices.get(place) }.into();
            let row = input::<T>(table, row as usize * row_stride, column_stride);
            let out = output::<T>(out, first_to + place * to_next, to[rank]);
            // SAFETY: the row is one of the table, and the loop nest stays within the output; the caller guarantees the rest.
            unsafe { rows::map1(columns, out, row, |element| element) };
        }
    });
}

//! Index select: rows of a table, as indices give them. All indices are checked before anything is written.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op, Operand};

use crate::indices;
use crate::loop_nest::LoopNest;
use crate::parallel;
use crate::rows::{self, input, output};

/// The kernel of [`Op::IndexSelect`], for a table of any dtype.
pub(super) fn index_select(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let by = call.operands.get(1).map_or(DType::I64, Operand::dtype);
    let ([table, at], out) = checked_operands(call, [dtype, by], dtype, InPlace::Refused)?;
    check_inferred(Op::IndexSelect, [table, at], out, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    // SAFETY: inference has refused other dtypes of indices, and `checked_operands` has checked alignment.
    unsafe { indices::check(Op::IndexSelect, at, table.layout().shape().dims()[0]) }?;
    // For every arm: the indices are in range, elements of this size and alignment are copied as they are, and `checked_operands` has checked the rest.
    match dtype.size() {
        // SAFETY: see above.
        1 => unsafe { select::<u8>(table, at, out) },
        // SAFETY: see above.
        2 => unsafe { select::<u16>(table, at, out) },
        // SAFETY: see above.
        4 => unsafe { select::<u32>(table, at, out) },
        // SAFETY: see above.
        _ => unsafe { select::<u64>(table, at, out) },
    }
    Ok(())
}

/// Copies the rows.
///
/// # Safety
///
/// * `at` holds indices, each a row of the table. `table` and `out` hold elements of the size of `T`. All are aligned.
/// * `out` may be written, overlaps no input, and has the axes of `at`, then the columns of `table`. It has elements.
unsafe fn select<T: Copy + Send>(table: &Operand, at: &Operand, out: &Operand) {
    let (dims, rank) = (at.layout().shape().dims(), at.layout().shape().rank());
    let (to, from) = (out.layout().strides(), at.layout().strides());
    let columns = table.layout().shape().dims()[1];
    let [row_stride, column_stride] = [0, 1].map(|axis| table.layout().strides()[axis]);
    let nest = LoopNest::over(&mut (0..rank).map(|axis| (dims[axis], [to[axis], from[axis]])));
    let [to_next, at_next] = nest.row_strides();
    nest.rows_in_parallel(columns * parallel::LIGHT, |[first_to, first_at], count| {
        for place in 0..count {
            // SAFETY: the loop nest stays within the indices; the caller guarantees the rest.
            let row = unsafe { indices::at(at, first_at + place * at_next) };
            let row = input::<T>(table, row as usize * row_stride, column_stride);
            let out = output::<T>(out, first_to + place * to_next, to[rank]);
            // SAFETY: the row is one of the table, and the loop nest stays within the output; the caller guarantees the rest.
            unsafe { rows::copy(columns, out, row) };
        }
    });
}

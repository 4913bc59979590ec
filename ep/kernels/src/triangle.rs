//! Triangles: each matrix of the two innermost axes with zeros on one side of a diagonal.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op, Operand};

use crate::loop_nest::LoopNest;
use crate::parallel;
use crate::rows::{self, input, output};

/// The kernel of [`Op::Tril`] and [`Op::Triu`], for every dtype.
pub(super) fn triangle(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let (op, dtype) = (call.kernel.op, call.kernel.dtype);
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
    check_inferred(op, [a], out, call)?;
    let side = Side { lower: op == Op::Tril, diagonal: call.params.checked_diagonal(op)? };
    // For every arm: both operands hold elements of this size, whose zero has no bit set, and `checked_operands` has checked the rest.
    match dtype.size() {
        // SAFETY: see above.
        1 => unsafe { kept::<u8>(a, out, side) },
        // SAFETY: see above.
        2 => unsafe { kept::<u16>(a, out, side) },
        // SAFETY: see above.
        4 => unsafe { kept::<u32>(a, out, side) },
        // SAFETY: see above.
        _ => unsafe { kept::<u64>(a, out, side) },
    }
    Ok(())
}

/// The side of a diagonal whose elements a triangle keeps.
#[derive(Copy, Clone)]
struct Side {
    lower: bool,
    diagonal: i64,
}

impl Side {
    /// How many columns of `row` lie on the lower side of the border: the lower triangle keeps these, the upper one the others.
    fn split(self, row: usize, columns: usize) -> usize {
        let first = (row as i64).saturating_add(self.diagonal).saturating_add(i64::from(self.lower));
        first.clamp(0, columns as i64) as usize
    }
}

/// # Safety
///
/// * Both operands hold elements of the size and alignment of `T`, and have one shape of at least two axes.
/// * `out` may be written, reaches no element twice, and does not overlap `a`.
unsafe fn kept<T: Copy + Send + Sync + From<u8>>(a: &Operand, out: &Operand, side: Side) {
    let (dims, to, from) = (out.layout().shape().dims(), out.layout().strides(), a.layout().strides());
    let Some((batch, &[rows, columns])) = dims.split_last_chunk::<2>() else { return };
    let at = batch.len();
    let nest = LoopNest::over(&mut (0..at).map(|axis| (dims[axis], [to[axis], from[axis]])));
    let [to_next, from_next] = nest.row_strides();
    let work = batch.iter().product::<usize>() * columns * parallel::LIGHT;
    parallel::ranges(rows, work, |range| {
        for row in range {
            let split = side.split(row, columns);
            nest.rows(|[first_to, first_from]| {
                for place in 0..nest.row_length() {
                    let out = output::<T>(out, first_to + place * to_next + row * to[at], to[at + 1]);
                    let row = input::<T>(a, first_from + place * from_next + row * from[at], from[at + 1]);
                    let (copied, zeros, length) =
                        if side.lower { (0, split, split) } else { (split, 0, columns - split) };
                    // SAFETY: the columns are those of a row of both operands; the caller guarantees the rest.
                    unsafe { rows::copy(length, out.from(copied), row.from(copied)) };
                    // SAFETY: as above.
                    unsafe { rows::fill(columns - length, out.from(zeros), T::from(0)) };
                }
            });
        }
    });
}

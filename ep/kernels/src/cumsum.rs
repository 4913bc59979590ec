//! Running sums along one axis. A row is added up by one thread, from its first element on, so that the bits do not depend on the number of threads, and
//! are those of a CUDA device.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Op};

use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Number};
use crate::parallel;
use crate::rows::{InRow, OutRow, input, output};

/// The kernel of [`Op::CumSum`].
pub(super) fn cumsum<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
    check_inferred(Op::CumSum, [a], out, call)?;
    let (dims, to, from) = (out.layout().shape().dims(), out.layout().strides(), a.layout().strides());
    for axis in call.params.axes.iter() {
        let others = (0..dims.len()).filter(|&other| other != axis);
        let nest = LoopNest::over(&mut others.map(|other| (dims[other], [to[other], from[other]])));
        let [to_next, from_next] = nest.row_strides();
        nest.rows_in_parallel(dims[axis] * parallel::LIGHT, |[first_to, first_from], count| {
            for place in 0..count {
                let out = output::<D::Store>(out, first_to + place * to_next, to[axis]);
                let row = input::<D::Store>(a, first_from + place * from_next, from[axis]);
                // SAFETY: the loop nest and the axis stay within both operands, which hold `D`; the output may be written and does not overlap the input.
                unsafe { sums(dims[axis], out, row) };
            }
        });
    }
    Ok(())
}

/// Writes the sums of one row.
///
/// # Safety
///
/// * The first `length` elements of `row` and of `out` are as [`InRow::get`] and [`OutRow::set`] require.
#[inline(always)]
unsafe fn sums<T: Number>(length: usize, out: OutRow<T>, row: InRow<T>) {
    if length == 0 {
        return;
    }
    // The first element as it is: a sum of 0 and a negative zero would lose its sign.
    // SAFETY: the caller guarantees this, here and below.
    let mut sum = unsafe { row.get(0) }.to_sum();
    // SAFETY: as above.
    unsafe { out.set(0, T::from_sum(sum)) };
    for place in 1..length {
        // SAFETY: as above.
        sum = sum.add(unsafe { row.get(place) }.to_sum());
        // SAFETY: as above.
        unsafe { out.set(place, T::from_sum(sum)) };
    }
}

//! Elements at places along one axis, as indices give them: `take_along_axis`, `scatter`, `scatter_add`. All indices are checked before anything is
//! written.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op, Operand};

use crate::copy::copy;
use crate::indices;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Number};
use crate::parallel;
use crate::rows::{input, output};

/// The kernel of [`Op::TakeAlongAxis`], for every dtype.
pub(super) fn take_along_axis(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let ([a, at], out) = checked_operands(call, [dtype, index_dtype(call)], dtype, InPlace::Refused)?;
    check_inferred(Op::TakeAlongAxis, [a, at], out, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    for axis in call.params.axes.iter() {
        // SAFETY: inference has refused other dtypes of indices, and `checked_operands` has checked alignment.
        unsafe { indices::check(Op::TakeAlongAxis, at, a.layout().shape().dims()[axis]) }?;
        // For every arm: the indices are in range, elements of this size are copied as they are, and `checked_operands` has checked the rest.
        match dtype.size() {
            // SAFETY: see above.
            1 => unsafe { take::<u8>(a, at, out, axis) },
            // SAFETY: see above.
            2 => unsafe { take::<u16>(a, at, out, axis) },
            // SAFETY: see above.
            4 => unsafe { take::<u32>(a, at, out, axis) },
            // SAFETY: see above.
            _ => unsafe { take::<u64>(a, at, out, axis) },
        }
    }
    Ok(())
}

/// The kernel of [`Op::Scatter`], for every dtype.
pub(super) fn scatter(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    // For every arm: elements of this size are copied as they are.
    match dtype.size() {
        // SAFETY: see above.
        1 => unsafe { put::<u8>(Op::Scatter, dtype, call, |_, new| new) },
        // SAFETY: see above.
        2 => unsafe { put::<u16>(Op::Scatter, dtype, call, |_, new| new) },
        // SAFETY: see above.
        4 => unsafe { put::<u32>(Op::Scatter, dtype, call, |_, new| new) },
        // SAFETY: see above.
        _ => unsafe { put::<u64>(Op::Scatter, dtype, call, |_, new| new) },
    }
}

/// The kernel of [`Op::ScatterAdd`].
pub(super) fn scatter_add<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    // SAFETY: elements of `D` are stored so.
    unsafe { put::<D::Store>(Op::ScatterAdd, D::dtype(call), call, D::Store::add) }
}

/// The dtype that the indices have; that they are integers is checked by inference.
fn index_dtype(call: &KernelCall<'_, '_>) -> DType {
    call.operands.get(1).map_or(DType::I64, Operand::dtype)
}

/// # Safety
///
/// * `a` and `out` hold elements of the size and alignment of `T`. `at` holds indices, each a place on the axis of `a`. All are aligned.
/// * `out` may be written, overlaps no input, and has the shape of `at`, which is that of `a` but for the axis. It has elements.
unsafe fn take<T: Copy + Send + Sync>(a: &Operand, at: &Operand, out: &Operand, axis: usize) {
    let dims = out.layout().shape().dims();
    let [to, index, from] = [out, at, a].map(|operand| operand.layout().strides());
    let along = |other: usize| if other == axis { 0 } else { from[other] };
    let nest = LoopNest::over(&mut (0..dims.len()).map(|other| (dims[other], [to[other], index[other], along(other)])));
    let ([to_next, index_next, from_next], along_axis) = (nest.row_strides(), from[axis]);
    nest.rows_in_parallel(parallel::LIGHT, |[first_to, first_index, first_from], count| {
        let (out, from) = (output::<T>(out, first_to, to_next), input::<T>(a, first_from, 1));
        for place in 0..count {
            // SAFETY: the loop nest stays within the indices; the caller guarantees the rest.
            let taken = unsafe { indices::at(at, first_index + place * index_next) } as usize;
            // SAFETY: the index is a place on the axis, and the loop nest stays within the others; the caller guarantees the rest.
            let element = unsafe { from.get(place * from_next + taken * along_axis) };
            // SAFETY: the loop nest stays within the output; the caller guarantees the rest.
            unsafe { out.set(place, element) };
        }
    });
}

/// Copies the first input, and then puts the elements of the source in their places, one after the other along the axis: `join` makes the new element of the
/// one that is there and that of the source.
///
/// # Safety
///
/// * Elements of `dtype` have the size and alignment of `T`, and every value of them is one of `T`.
unsafe fn put<T: Copy + Send + Sync>(
    op: Op,
    dtype: DType,
    call: &mut KernelCall<'_, '_>,
    join: impl Fn(T, T) -> T + Sync,
) -> Result<(), KernelError> {
    let ([a, at, source], out) = checked_operands(call, [dtype, index_dtype(call), dtype], dtype, InPlace::Refused)?;
    check_inferred(op, [a, at, source], out, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    for axis in call.params.axes.iter() {
        // SAFETY: inference has refused other dtypes of indices, and `checked_operands` has checked alignment.
        unsafe { indices::check(op, at, a.layout().shape().dims()[axis]) }?;
        // SAFETY: a second view of the output, because the call only lends it; `out` is not used meanwhile.
        let mut target = unsafe { out.duplicate() };
        copy(a, &mut target)?;
        let dims = at.layout().shape().dims();
        let [to, index, from] = [out, at, source].map(|operand| operand.layout().strides());
        let others = (0..dims.len()).filter(|&other| other != axis);
        let nest = LoopNest::over(&mut others.map(|other| (dims[other], [to[other], index[other], from[other]])));
        let [to_next, index_next, from_next] = nest.row_strides();
        nest.rows_in_parallel(dims[axis] * parallel::LIGHT, |[first_to, first_index, first_from], count| {
            for place in 0..count {
                let out = output::<T>(out, first_to + place * to_next, to[axis]);
                let source = input::<T>(source, first_from + place * from_next, from[axis]);
                for step in 0..dims[axis] {
                    let offset = first_index + place * index_next + step * index[axis];
                    // SAFETY: the loop nest and the axis stay within the indices.
                    let target = unsafe { indices::at(at, offset) } as usize;
                    // SAFETY: as above, for the source.
                    let new = unsafe { source.get(step) };
                    // SAFETY: the index is a place on the axis of the output, whose elements the copy has written.
                    let old = unsafe { out.written().get(target) };
                    // SAFETY: as above; `checked_operands` has checked that the output may be written and overlaps no input. Rows of the loop nest have
                    // no element in common.
                    unsafe { out.set(target, join(old, new)) };
                }
            }
        });
    }
    Ok(())
}

//! Flip: the elements in the opposite order along some axes.

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{Axes, KernelCall, KernelError, Op, Operand};

use crate::loop_nest::LoopNest;
use crate::parallel;
use crate::rows::{self, input, output};

/// The kernel of [`Op::Flip`], for every dtype.
pub(super) fn flip(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
    check_inferred(Op::Flip, [a], out, call)?;
    if out.layout().elements() == 0 {
        return Ok(());
    }
    let axes = call.params.axes.or_all(out.layout().shape().rank());
    // For every arm: both operands hold elements of this size, which are copied as they are, and `checked_operands` has checked the rest.
    match dtype.size() {
        // SAFETY: see above.
        1 => unsafe { flipped::<u8>(a, out, axes) },
        // SAFETY: see above.
        2 => unsafe { flipped::<u16>(a, out, axes) },
        // SAFETY: see above.
        4 => unsafe { flipped::<u32>(a, out, axes) },
        // SAFETY: see above.
        _ => unsafe { flipped::<u64>(a, out, axes) },
    }
    Ok(())
}

/// Strides are not negative, so the offset of an element of the input is that of its first one, plus the steps along the axes that are kept, minus those
/// along the axes that are flipped, where the first one is the last along these.
///
/// # Safety
///
/// * Both operands hold elements of the size and alignment of `T`, and have one shape, which is not empty.
/// * `out` may be written, reaches no element twice, and does not overlap `a`.
unsafe fn flipped<T: Copy + Send + Sync>(a: &Operand, out: &Operand, axes: Axes) {
    let (dims, to, from) = (out.layout().shape().dims(), out.layout().strides(), a.layout().strides());
    let first: usize = axes.iter().map(|axis| (dims[axis] - 1) * from[axis]).sum();
    let strides = |axis: usize| match axes.contains(axis) {
        true => [to[axis], 0, from[axis]],
        false => [to[axis], from[axis], 0],
    };
    let nest = LoopNest::over(&mut (0..dims.len()).map(|axis| (dims[axis], strides(axis))));
    let [to_next, forward, back] = nest.row_strides();
    nest.rows_in_parallel(parallel::LIGHT, |[to, plus, minus], length| {
        let from = first + plus - minus;
        let out = output::<T>(out, to, to_next);
        if back == 0 {
            // SAFETY: the loop nest stays within both operands; the caller guarantees the rest.
            return unsafe { rows::copy(length, out, input::<T>(a, from, forward)) };
        }
        for place in 0..length {
            // SAFETY: as above; along a flipped row the offsets descend to that of its first element.
            let element = unsafe { input::<T>(a, from - place * back, 1).get(0) };
            // SAFETY: as above.
            unsafe { out.set(place, element) };
        }
    });
}

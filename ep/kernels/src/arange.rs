//! A sequence of numbers: element `i`, in row-major order, is `first + i step`.

use half::{bf16, f16};
use streamvm_ep::backend::check::{InPlace, checked_operands};
use streamvm_ep::{DType, Extra, KernelCall, KernelError, Op, Operand, check_source};

use crate::half_floats::Nearest;
use crate::parallel;
use crate::random::offset;
use crate::rows::output;

/// The kernel of [`Op::Arange`], for every dtype.
pub(super) fn arange(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = call.kernel.dtype;
    let ([], out) = checked_operands(call, [], dtype, InPlace::Refused)?;
    check_source(Op::Arange, dtype, call.params)?;
    match call.params.extra {
        Extra::Integers { first, step } => {
            let at = move |index: usize| first.wrapping_add((index as i64).wrapping_mul(step));
            // For every arm: the output holds this type, and `checked_operands` has checked the rest.
            match dtype {
                // SAFETY: see above; an integer of the other sign has the same bits.
                DType::I16 | DType::U16 => unsafe { write(out, move |index| at(index) as u16) },
                // SAFETY: as above.
                DType::I32 | DType::U32 => unsafe { write(out, move |index| at(index) as u32) },
                // SAFETY: as above.
                DType::I64 | DType::U64 => unsafe { write(out, at) },
                // SAFETY: as above; `check_source` has refused dtypes that are no integers.
                _ => unsafe { write(out, move |index| at(index) as u8) },
            }
        }
        Extra::Floats { first, step } => {
            let (first, step) = (f64::from_bits(first), f64::from_bits(step));
            let at = move |index: usize| first + index as f64 * step;
            // As above.
            match dtype {
                // SAFETY: see above.
                DType::F32 => unsafe { write(out, move |index| at(index) as f32) },
                // SAFETY: see above.
                DType::F16 => unsafe { write(out, move |index| f16::nearest(at(index))) },
                // SAFETY: see above.
                DType::BF16 => unsafe { write(out, move |index| bf16::nearest(at(index))) },
                // SAFETY: see above; `check_source` has refused other dtypes.
                _ => unsafe { write(out, at) },
            }
        }
        // `check_source` has refused all others.
        _ => {}
    }
    Ok(())
}

/// Writes each element by its row-major index.
///
/// # Safety
///
/// * `out` holds elements stored as `T`, aligned.
/// * It may be written, and reaches no element twice.
unsafe fn write<T: Copy + Send + Sync>(out: &Operand, at: impl Fn(usize) -> T + Sync) {
    let (layout, whole) = (out.layout(), out.layout().is_contiguous());
    parallel::ranges(layout.elements(), parallel::LIGHT, |range| {
        let target = output::<T>(out, 0, 1);
        for index in range {
            let place = if whole { index } else { offset(layout, index) };
            // SAFETY: this is the position of an index of the output; the caller guarantees the rest.
            unsafe { target.set(place, at(index)) };
        }
    });
}

//! Strided copy and fill. A copy moves bits, so one loop per element size serves every dtype.

use crate::call::check::{check_copy, check_fill};
use crate::cpu::kernels::elementwise::{map1_nest, output};
use half::{bf16, f16};

use crate::call::operand::Operand;
use crate::cpu::kernels::half_floats::Nearest;
use crate::cpu::kernels::loop_nest::LoopNest;
use crate::cpu::kernels::rows;
use crate::errors::error::Error;
use crate::tensor::dtype::DType;
use crate::tensor::scalar::Scalar;

/// Copies `source` to `target`; see [`Stream::copy`](crate::Stream::copy).
pub(crate) fn copy(source: &Operand, target: &mut Operand) -> Result<(), Error> {
    if !check_copy(source, target)? {
        return Ok(());
    }
    // For every arm: both operands hold elements of this size, aligned to it, and have one shape. The target may be written, reaches no
    // element twice and does not overlap the source.
    match source.dtype().size() {
        // SAFETY: see above.
        1 => unsafe { map1_nest(source, target, |bits: u8| bits) },
        // SAFETY: see above.
        2 => unsafe { map1_nest(source, target, |bits: u16| bits) },
        // SAFETY: see above.
        4 => unsafe { map1_nest(source, target, |bits: u32| bits) },
        // SAFETY: see above.
        _ => unsafe { map1_nest(source, target, |bits: u64| bits) },
    }
    Ok(())
}

/// Fills `target` with `value`; see [`Stream::fill`](crate::Stream::fill).
pub(crate) fn fill(target: &mut Operand, value: Scalar) -> Result<(), Error> {
    check_fill(target, value)?;
    // For every arm: the target holds this type, aligned, may be written and reaches no element twice.
    match target.dtype() {
        // SAFETY: see above.
        DType::F32 => unsafe { fill_nest(target, float::<f32>(value)) },
        // SAFETY: see above.
        DType::F64 => unsafe { fill_nest(target, float::<f64>(value)) },
        // SAFETY: see above.
        DType::F16 => unsafe { fill_nest(target, float::<f16>(value)) },
        // SAFETY: see above.
        DType::BF16 => unsafe { fill_nest(target, float::<bf16>(value)) },
        // SAFETY: see above.
        DType::I32 => unsafe { fill_nest(target, integer(value) as i32) },
        // SAFETY: see above.
        DType::I64 => unsafe { fill_nest(target, integer(value)) },
        // SAFETY: see above.
        DType::U8 | DType::Bool => unsafe { fill_nest(target, integer(value) as u8) },
    }
    Ok(())
}

/// `value` as a float, rounded once; the caller has checked that it fits.
fn float<T: Nearest<f64> + Nearest<i64>>(value: Scalar) -> T {
    match value {
        Scalar::F64(value) => T::nearest(value),
        Scalar::I64(value) => T::nearest(value),
        Scalar::Bool(value) => T::nearest(i64::from(value)),
    }
}

/// `value` as an integer; the caller has checked that it fits.
fn integer(value: Scalar) -> i64 {
    match value {
        Scalar::F64(value) => value as i64,
        Scalar::I64(value) => value,
        Scalar::Bool(value) => i64::from(value),
    }
}

/// # Safety
///
/// * `target` holds elements stored as `T`, aligned.
/// * It may be written, and reaches no element twice.
unsafe fn fill_nest<T: Copy>(target: &Operand, value: T) {
    let nest = LoopNest::new([target.layout()]);
    let [stride] = nest.row_strides();
    nest.rows(|[to]| {
        let out = output::<T>(target, to, stride);
        // SAFETY: the loop nest stays within the target; the caller guarantees the rest.
        unsafe { rows::fill(nest.row_length(), out, value) };
    });
}

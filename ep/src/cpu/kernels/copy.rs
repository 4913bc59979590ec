//! Strided copy and fill. A copy moves bits: one loop per element size serves every dtype.

use crate::check::check_reach;
use crate::cpu::kernels::elementwise::{map1_walk, output};
use half::{bf16, f16};

use crate::cpu::kernels::narrow::Nearest;
use crate::cpu::kernels::rows;
use crate::cpu::kernels::walk::Walk;
use crate::dtype::DType;
use crate::error::Error;
use crate::operand::Operand;
use crate::scalar::Scalar;

/// Copies `source` to `target`; see [`Stream::copy`](crate::Stream::copy).
pub(crate) fn copy(source: &Operand, target: &mut Operand) -> Result<(), Error> {
    if !check_copy(source, target)? {
        return Ok(());
    }
    // In every arm: both hold elements of this size, aligned to it, of one shape; the target may be
    // written, reaches no element twice and does not meet the source.
    match source.dtype().size() {
        // SAFETY: see above.
        1 => unsafe { map1_walk(source, target, |bits: u8| bits) },
        // SAFETY: see above.
        2 => unsafe { map1_walk(source, target, |bits: u16| bits) },
        // SAFETY: see above.
        4 => unsafe { map1_walk(source, target, |bits: u32| bits) },
        // SAFETY: see above.
        _ => unsafe { map1_walk(source, target, |bits: u64| bits) },
    }
    Ok(())
}

/// Errs unless a copy of these operands is allowed. Is there anything to do? Not if it is a view onto itself.
pub(crate) fn check_copy(source: &Operand, target: &Operand) -> Result<bool, Error> {
    if source.dtype() != target.dtype() || source.layout().shape() != target.layout().shape() {
        return Err(Error::CopyMismatch {
            source_dtype: source.dtype(),
            source_shape: Box::new(*source.layout().shape()),
            target_dtype: target.dtype(),
            target_shape: Box::new(*target.layout().shape()),
        });
    }
    check_target(target)?;
    source.check_aligned()?;
    if target.overlaps(source) {
        if target.same_view(source) {
            return Ok(false);
        }
        return Err(Error::Overlap { written: 1, other: 0 });
    }
    Ok(true)
}

/// Fills `target` with `value`; see [`Stream::fill`](crate::Stream::fill).
pub(crate) fn fill(target: &mut Operand, value: Scalar) -> Result<(), Error> {
    check_fill(target, value)?;
    // In every arm: the target holds this type, aligned, may be written and reaches no element twice.
    match target.dtype() {
        // SAFETY: see above.
        DType::F32 => unsafe { fill_walk(target, float::<f32>(value)) },
        // SAFETY: see above.
        DType::F64 => unsafe { fill_walk(target, float::<f64>(value)) },
        // SAFETY: see above.
        DType::F16 => unsafe { fill_walk(target, float::<f16>(value)) },
        // SAFETY: see above.
        DType::BF16 => unsafe { fill_walk(target, float::<bf16>(value)) },
        // SAFETY: see above.
        DType::I32 => unsafe { fill_walk(target, integer(value) as i32) },
        // SAFETY: see above.
        DType::I64 => unsafe { fill_walk(target, integer(value)) },
        // SAFETY: see above.
        DType::U8 | DType::Bool => unsafe { fill_walk(target, integer(value) as u8) },
    }
    Ok(())
}

/// Errs unless a fill of `target` with `value` is allowed.
pub(crate) fn check_fill(target: &Operand, value: Scalar) -> Result<(), Error> {
    let dtype = target.dtype();
    if !value.fits(dtype) {
        return Err(Error::ScalarDoesNotFit { value, dtype });
    }
    check_target(target)
}

fn check_target(target: &Operand) -> Result<(), Error> {
    target.check_writable()?;
    target.check_aligned()?;
    check_reach(target)
}

/// `value` as a float, rounded once; it fits one.
fn float<T: Nearest<f64> + Nearest<i64>>(value: Scalar) -> T {
    match value {
        Scalar::F64(value) => T::nearest(value),
        Scalar::I64(value) => T::nearest(value),
        Scalar::Bool(value) => T::nearest(i64::from(value)),
    }
}

/// `value` as an integer; it fits one.
fn integer(value: Scalar) -> i64 {
    match value {
        Scalar::F64(value) => value as i64,
        Scalar::I64(value) => value,
        Scalar::Bool(value) => i64::from(value),
    }
}

/// # Safety
///
/// * `target` holds elements stored as `T`, aligned, may be written, and reaches none twice.
unsafe fn fill_walk<T: Copy>(target: &Operand, value: T) {
    let walk = Walk::new([target.layout()]);
    let [stride] = walk.row_strides();
    walk.rows(|[to]| {
        let out = output::<T>(target, to, stride);
        // SAFETY: the walk stays within the target; the rest is the caller's duty.
        unsafe { rows::fill(walk.row_length(), out, value) };
    });
}

//! What each float dtype can hold, worked out in `f64`, and how near to the reference a result must be.

use streamvm_ep::{DType, Op};

/// Significant bits, the exponent of the smallest normal number, and the largest number.
fn format(dtype: DType) -> (i32, i32, f64) {
    match dtype {
        DType::F32 => (24, -126, f32::MAX.into()),
        DType::F64 => (53, -1022, f64::MAX),
        DType::F16 => (11, -14, 65504.0),
        DType::BF16 => (8, -126, 255.0 * 2f64.powi(120)),
        _ => panic!("{dtype} is no float"),
    }
}

/// From `x` to the next larger number that the dtype has, if `x` were one of its own.
fn step(dtype: DType, x: f64) -> f64 {
    let (digits, least, _) = format(dtype);
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(least) - (digits - 1))
}

/// The nearest number to `x` that the dtype has, ties to even.
pub(crate) fn rounded(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F64 || x == 0.0 || !x.is_finite() {
        return x;
    }
    let near = (x / step(dtype, x)).round_ties_even() * step(dtype, x);
    if near.abs() > format(dtype).2 { f64::INFINITY.copysign(x) } else { near }
}

/// How far a result may be from the reference.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Margin {
    /// In steps of what it is computed in.
    pub(crate) units: f64,
    /// The size, if larger than the result's, that the steps are relative to.
    pub(crate) scale: f64,
    /// What subnormal numbers may be lost, where `units` is not 0.
    pub(crate) least: f64,
}

/// Is `found` what `op` may give for `expected`, which is not rounded?
///
/// 16-bit floats are computed in `f32` within the margin and rounded once, so that they are half a step further
/// away at most.
pub(crate) fn agrees(op: Op, dtype: DType, found: f64, expected: f64, margin: Margin) -> bool {
    let is_narrow = dtype.size() == 2;
    let computed = if is_narrow && op != Op::Cast { DType::F32 } else { dtype };
    let near = rounded(dtype, rounded(computed, expected));
    if found == near || (found.is_nan() && near.is_nan()) {
        return true;
    }
    if margin.units == 0.0 || !found.is_finite() || !near.is_finite() {
        return false;
    }
    let (target, lost) = if is_narrow { (expected, step(dtype, expected) / 2.0) } else { (near, 0.0) };
    let size = expected.abs().max(margin.scale);
    (found - target).abs() <= margin.units * step(computed, 1.0) * size + lost + margin.least
}

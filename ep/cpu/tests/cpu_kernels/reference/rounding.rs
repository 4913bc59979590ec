//! What each float dtype can hold, worked out in `f64`, and how near to the exact result, or to that of a CPU, one must be: what the row of the op says.

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

fn is_same(found: f64, other: f64) -> bool {
    found == other || (found.is_nan() && other.is_nan())
}

/// A result of a CPU, or of another device, beside the exact one.
#[derive(Copy, Clone, PartialEq, Debug)]
#[allow(dead_code, reason = "each suite that takes this file compares with one of the two")]
pub(crate) enum On {
    Cpu,
    AnyDevice,
}

/// Is `found` what `op` may give for `expected`, which is not rounded, of so many terms?
#[allow(dead_code, reason = "the CUDA suite compares with the CPU")]
pub(crate) fn agrees_with_exact(op: Op, dtype: DType, on: On, found: f64, expected: f64, terms: usize) -> bool {
    let accuracy = op.accuracy();
    let computed = accuracy.computed(dtype);
    let near = rounded(dtype, rounded(computed, expected));
    if is_same(found, near) {
        return true;
    }
    let (apart, least) = if on == On::Cpu { (0.0, 1e-44) } else { (accuracy.apart(), 1e-36) };
    // The reference is computed in `f64`, and rounds the argument of an exponential.
    let own = if dtype == DType::F64 && accuracy.is_function() { 3.0 * accuracy.on_cpu(terms) + 4.0 } else { 0.0 };
    let steps = accuracy.on_cpu(terms) + apart + own;
    if steps == 0.0 || !found.is_finite() || !near.is_finite() {
        return false;
    }
    // What is computed in a wider dtype is rounded once more, so that it is half a step further away at most.
    let (target, lost) = if computed != dtype { (expected, step(dtype, expected) / 2.0) } else { (near, 0.0) };
    let size = expected.abs().max(accuracy.scale(terms));
    (found - target).abs() <= steps * step(computed, 1.0) * size + lost + least
}

/// Is `found` what another device may give where a CPU gives `expected`, of so many terms?
#[allow(dead_code, reason = "the other suites compare with the exact result")]
pub(crate) fn agrees_with_cpu(op: Op, dtype: DType, found: f64, expected: f64, terms: usize) -> bool {
    let accuracy = op.accuracy();
    if is_same(found, expected) {
        return true;
    }
    if accuracy.apart() == 0.0 || !found.is_finite() || !expected.is_finite() {
        return false;
    }
    let computed = accuracy.computed(dtype);
    let lost = if computed != dtype { step(dtype, expected) } else { 0.0 };
    let size = expected.abs().max(accuracy.scale(terms));
    (found - expected).abs() <= accuracy.apart() * step(computed, 1.0) * size + lost + 1e-36
}

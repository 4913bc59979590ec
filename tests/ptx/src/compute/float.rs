//! `.f32` and `.f64`.

use std::cmp::Ordering;

use crate::compute::integer::select;
use crate::compute::{Computation, Function, PREDICATE};
use crate::text::syntax::{Kind, Type};

/// What the hardware gives as NaN.
const NAN32: u32 = 0x7fff_ffff;
const NAN64: u64 = 0xfff8_0000_0000_0000;

fn bits32(number: f32) -> u64 {
    u64::from(if number.is_nan() { NAN32 } else { number.to_bits() })
}

fn bits64(number: f64) -> u64 {
    if number.is_nan() { NAN64 } else { number.to_bits() }
}

fn of32(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn of64(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The same formula for both types; the result is a number of the type.
macro_rules! of_floats {
    ($of:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match $of.bits {
            32 => |a, b, c| {
                let ($a, $b, $c) = (of32(a), of32(b), of32(c));
                let _ = ($b, $c);
                bits32($body)
            },
            64 => |a, b, c| {
                let ($a, $b, $c) = (of64(a), of64(b), of64(c));
                let _ = ($b, $c);
                bits64($body)
            },
            _ => return None,
        }
    };
}

/// The same comparison for both types.
macro_rules! of_orders {
    ($of:expr, |$a:ident, $b:ident| $body:expr) => {
        match $of.bits {
            32 => |a, b, _| {
                let ($a, $b) = (of32(a), of32(b));
                ($body).into()
            },
            64 => |a, b, _| {
                let ($a, $b) = (of64(a), of64(b));
                ($body).into()
            },
            _ => return None,
        }
    };
}

pub(super) fn computation(name: &str, modifiers: &[&str], of: Type) -> Option<Computation> {
    let single = of.bits == 32;
    let (function, operands): (Function, usize) = match (name, modifiers) {
        ("add", [] | ["rn"]) => (of_floats!(of, |a, b, _c| a + b), 2),
        ("sub", [] | ["rn"]) => (of_floats!(of, |a, b, _c| a - b), 2),
        ("mul", [] | ["rn"]) => (of_floats!(of, |a, b, _c| a * b), 2),
        ("div", ["rn"]) => (of_floats!(of, |a, b, _c| a / b), 2),
        ("div", ["approx"]) if single => (|a, b, _| bits32(of32(a) / of32(b)), 2),
        ("fma", ["rn"]) => (of_floats!(of, |a, b, c| a.mul_add(b, c)), 3),
        ("fma", ["rm"]) if single => (|a, b, c| bits32(fused(of32(a), of32(b), of32(c), Toward::Below)), 3),
        ("fma", ["rz"]) if single => (|a, b, c| bits32(fused(of32(a), of32(b), of32(c), Toward::Zero)), 3),
        ("add", ["rz"]) if single => (|a, b, _| bits32(fused(of32(a), 1.0, of32(b), Toward::Zero)), 2),
        ("sqrt", ["rn"]) => (of_floats!(of, |a, _b, _c| a.sqrt()), 1),
        ("rcp", ["rn"]) => (of_floats!(of, |a, _b, _c| 1.0 / a), 1),
        ("rcp", ["approx", "ftz"]) if single => (|a, _, _| bits32(flushed(1.0 / flushed(of32(a)))), 1),
        ("rcp", ["approx", "ftz"]) => (|a, _, _| coarse(a, |a| 1.0 / a), 1),
        ("rsqrt", ["approx", "ftz"]) if !single => (|a, _, _| coarse(a, |a| 1.0 / a.sqrt()), 1),
        ("ex2", ["approx", "ftz"]) if single => {
            (|a, _, _| bits32(flushed(f64::from(flushed(of32(a))).exp2() as f32)), 1)
        }
        ("ex2", ["approx"]) if single => (|a, _, _| bits32(f64::from(of32(a)).exp2() as f32), 1),
        ("abs", []) if single => (|a, _, _| a & 0x7fff_ffff, 1),
        ("abs", []) => (|a, _, _| a & !(1 << 63), 1),
        ("neg", []) if single => (|a, _, _| a ^ 0x8000_0000, 1),
        ("neg", []) => (|a, _, _| a ^ 1 << 63, 1),
        ("min", []) => {
            (of_floats!(of, |a, b, _c| if a < b || b.is_nan() || (a == b && a.is_sign_negative()) { a } else { b }), 2)
        }
        ("max", []) => {
            (of_floats!(of, |a, b, _c| if a > b || b.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }), 2)
        }
        ("copysign", []) if single => (|a, b, _| a & 0x8000_0000 | b & 0x7fff_ffff, 2),
        ("copysign", []) => (|a, b, _| a & 1 << 63 | b & !(1 << 63), 2),
        ("mov", []) => (|a, _, _| a, 1),
        ("selp", []) => return select(of),
        ("setp", [comparison]) => return compare(comparison, of),
        _ => return None,
    };
    (of.bits >= 32).then(|| Computation::new(function, of, &[of; 3][..operands]))
}

fn compare(comparison: &str, of: Type) -> Option<Computation> {
    // With a NaN, the first six are false and those with a `u` after are true.
    let function: Function = match comparison {
        "eq" => of_orders!(of, |a, b| a == b),
        "ne" => of_orders!(of, |a, b| a.partial_cmp(&b).is_some_and(Ordering::is_ne)),
        "lt" => of_orders!(of, |a, b| a < b),
        "le" => of_orders!(of, |a, b| a <= b),
        "gt" => of_orders!(of, |a, b| a > b),
        "ge" => of_orders!(of, |a, b| a >= b),
        "equ" => of_orders!(of, |a, b| a.partial_cmp(&b).is_none_or(Ordering::is_eq)),
        "neu" => of_orders!(of, |a, b| a != b),
        "ltu" => of_orders!(of, |a, b| a.partial_cmp(&b).is_none_or(Ordering::is_lt)),
        "leu" => of_orders!(of, |a, b| a.partial_cmp(&b).is_none_or(Ordering::is_le)),
        "gtu" => of_orders!(of, |a, b| a.partial_cmp(&b).is_none_or(Ordering::is_gt)),
        "geu" => of_orders!(of, |a, b| a.partial_cmp(&b).is_none_or(Ordering::is_ge)),
        "num" => of_orders!(of, |a, b| !a.is_nan() && !b.is_nan()),
        "nan" => of_orders!(of, |a, b| a.is_nan() || b.is_nan()),
        _ => return None,
    };
    Some(Computation::new(function, PREDICATE, &[Type { kind: Kind::Float, ..of }; 2]))
}

/// `.ftz`: numbers below the normal ones become zeros of their sign.
fn flushed(number: f32) -> f32 {
    if number.is_subnormal() { 0f32.copysign(number) } else { number }
}

/// A result of the upper half of the operand's bits, in the upper half of the bits.
fn coarse(bits: u64, function: fn(f64) -> f64) -> u64 {
    let flushed = |number: f64| if number.is_subnormal() { 0f64.copysign(number) } else { number };
    let result = flushed(function(flushed(of64(bits & !0xffff_ffff))));
    if result.is_nan() { NAN64 } else { result.to_bits() & !0xffff_ffff }
}

/// A direction of rounding.
#[derive(Copy, Clone, PartialEq)]
enum Toward {
    Below,
    Zero,
}

/// `a * b + c`, rounded once in that direction.
///
/// The product of two `f32` is exact in `f64`. The rest of the sum that `f64` cannot hold is found by Knuth's TwoSum, and says on which side of
/// the rounded sum the exact one is.
fn fused(a: f32, b: f32, c: f32, toward: Toward) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    if !sum.is_finite() {
        return sum as f32;
    }
    let back = sum - product;
    let rest = (product - (sum - back)) + (c - back);
    if sum == 0.0 && rest == 0.0 {
        // A sum of zeros of one sign keeps it; another exact zero is negative if rounded down.
        let same = product == 0.0 && product.is_sign_negative() == c.is_sign_negative();
        return if same {
            product as f32
        } else if toward == Toward::Below {
            -0.0
        } else {
            0.0
        };
    }
    let nearest = sum as f32;
    let wide = f64::from(nearest);
    let is_above = wide > sum || (wide == sum && rest < 0.0);
    let is_below = wide < sum || (wide == sum && rest > 0.0);
    let is_negative = sum < 0.0 || (sum == 0.0 && rest < 0.0);
    match toward {
        Toward::Zero if is_negative => {
            if is_below {
                nearest.next_up()
            } else {
                nearest
            }
        }
        Toward::Below | Toward::Zero => {
            if is_above {
                nearest.next_down()
            } else {
                nearest
            }
        }
    }
}

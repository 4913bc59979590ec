//! The 16-bit floats, `f16` and `bf16`: computed in `f32`, and rounded once.
//!
//! For `+ - * /` and the square root, rounding the `f32` result gives the same value as rounding the exact result, because an `f32` has
//! more than twice the significant bits of either type, and two to spare (Figueroa, "When is double rounding innocuous?", 1995).
//! Subnormal results of `bf16` are an exception.

use std::cmp::Ordering;

use half::{bf16, f16};

use crate::binary16;
use crate::halves::{self, Half};
use crate::number::{Float, Number};

macro_rules! half_float {
    ($float:ident as $half:ident by $wide:path, $rounded:path: sum overflows $overflows:literal, infinity $infinity:literal) => {
        impl Number for $float {
            type Computed = f32;
            type Compared = Key<$infinity>;
            type Sum = f32;

            const HALF: Option<Half> = Some(Half::$half);
            const IS_FLOAT: bool = true;
            const SUM_OVERFLOWS: bool = $overflows;
            const ZERO: $float = $float::ZERO;
            const ONE: $float = $float::ONE;
            const LOWEST: $float = $float::NEG_INFINITY;
            const HIGHEST: $float = $float::INFINITY;

            #[inline(always)]
            fn add(self, other: $float) -> $float {
                $float::rounded(self.wide() + other.wide())
            }

            #[inline(always)]
            fn sub(self, other: $float) -> $float {
                $float::rounded(self.wide() - other.wide())
            }

            #[inline(always)]
            fn mul(self, other: $float) -> $float {
                $float::rounded(self.wide() * other.wide())
            }

            #[inline(always)]
            fn div(self, other: $float) -> $float {
                $float::rounded(self.wide() / other.wide())
            }

            #[inline(always)]
            fn neg(self) -> $float {
                $float::from_bits(self.to_bits() ^ 0x8000)
            }

            #[inline(always)]
            fn abs(self) -> $float {
                $float::from_bits(self.to_bits() & 0x7fff)
            }

            #[inline(always)]
            fn sign(self) -> $float {
                let (bits, size) = (self.to_bits(), self.to_bits() & 0x7fff);
                let sign = if size == 0 { 0 } else { bits & 0x8000 | $float::ONE.to_bits() };
                $float::from_bits(if size > $infinity { bits } else { sign })
            }

            #[inline(always)]
            fn compared(self) -> Key<$infinity> {
                let bits = self.to_bits() as i16;
                let sign = bits >> 15;
                Key(((bits & 0x7fff) ^ sign) - sign)
            }

            #[inline(always)]
            fn to_sum(self) -> f32 {
                self.wide()
            }

            #[inline(always)]
            fn computed(self) -> f32 {
                self.wide()
            }

            #[inline(always)]
            fn sum_of(element: f32) -> f32 {
                element
            }

            #[inline(always)]
            fn from_sum(sum: f32) -> $float {
                $float::rounded(sum)
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self.wide())
            }

            #[inline(always)]
            fn from_f64(wide: f64) -> $float {
                $float::nearest(wide)
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self.to_bits() & 0x7fff > $infinity
            }

            /// Compares integers in the order of the floats: the bits of negative ones are turned around.
            #[inline(always)]
            fn exceeds(self, other: $float) -> bool {
                let ordered = |x: $float| {
                    let bits = x.to_bits() as i16;
                    bits ^ ((bits >> 15) & i16::MAX)
                };
                ordered(self) > ordered(other)
            }
        }

        impl Float for $float {
            type Wide = f32;

            #[inline(always)]
            fn wide(self) -> f32 {
                $wide(self)
            }

            #[inline(always)]
            fn rounded(wide: f32) -> $float {
                $rounded(wide)
            }

            #[inline(always)]
            fn wide_of(number: f64) -> f32 {
                number.rounded_to_odd()
            }

            #[inline(always)]
            fn mul_add(self, by: $float, add: $float) -> $float {
                $float::rounded(Float::mul_add(self.wide(), by.wide(), add.wide()))
            }

            #[inline(always)]
            fn mean(sum: f32, count: usize) -> $float {
                $float::rounded(sum / count as f32)
            }
        }

        impl<N: RoundedToOdd> Nearest<N> for $float {
            #[inline(always)]
            fn nearest(number: N) -> $float {
                $float::rounded(number.rounded_to_odd())
            }
        }
    };
}

// An `f32` can hold the sum of 2^112 of the largest `f16`, but of only one of the largest `bf16`.
half_float!(f16 as F16 by binary16::wide, binary16::rounded: sum overflows false, infinity 0x7c00);
half_float!(bf16 as BF16 by halves::wide, halves::rounded: sum overflows true, infinity 0x7f80);

/// A 16-bit float as an integer in the order of the floats, zeros being equal: the bits without the sign, of negative ones negated. NaNs are beyond `INFINITY` on both sides. Comparisons have no
/// branches, so that loops over them are vectorised, of 16 bits an element; the crate `half` compares by a chain of branches.
#[derive(Copy, Clone)]
pub(super) struct Key<const INFINITY: i16>(i16);

impl<const INFINITY: i16> PartialEq for Key<INFINITY> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        (self.0 == other.0) & (self.0.abs() <= INFINITY)
    }
}

impl<const INFINITY: i16> PartialOrd for Key<INFINITY> {
    #[inline(always)]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self <= other || other <= self).then(|| self.0.cmp(&other.0))
    }

    /// Of two ordered numbers a NaN is the lowest below the infinities, or the highest beyond them.
    #[inline(always)]
    fn lt(&self, other: &Self) -> bool {
        (self.0 < other.0) & (self.0 >= -INFINITY) & (other.0 <= INFINITY)
    }

    #[inline(always)]
    fn le(&self, other: &Self) -> bool {
        (self.0 <= other.0) & (self.0 >= -INFINITY) & (other.0 <= INFINITY)
    }

    #[inline(always)]
    fn gt(&self, other: &Self) -> bool {
        other < self
    }

    #[inline(always)]
    fn ge(&self, other: &Self) -> bool {
        other <= self
    }
}

/// Rounding of a number to the nearest element, ties to even, or to an infinity past the range: one rounding step.
pub(super) trait Nearest<N> {
    fn nearest(number: N) -> Self;
}

macro_rules! nearest {
    ($($from:ident $float:ident;)*) => {$(
        impl Nearest<$from> for $float {
            #[inline(always)]
            fn nearest(number: $from) -> $float {
                number as $float
            }
        }
    )*};
}

nearest! {
    f64 f32;
    i64 f32;
    u64 f32;
    f64 f64;
    i64 f64;
    u64 f64;
}

/// A number as an `f32` that gives the same 16-bit float as the number itself.
pub(super) trait RoundedToOdd {
    fn rounded_to_odd(self) -> f32;
}

// Not by the conversion of the crate `half`, which on some processors rounds twice and on others truncates.
impl RoundedToOdd for f64 {
    #[inline(always)]
    fn rounded_to_odd(self) -> f32 {
        let near = self as f32;
        odd(near, f64::from(near.abs()).partial_cmp(&self.abs()))
    }
}

impl RoundedToOdd for i64 {
    #[inline(always)]
    fn rounded_to_odd(self) -> f32 {
        let near = self as f32;
        // At most 2^63, which fits `u64`.
        odd(near, Some((near.abs() as u64).cmp(&self.unsigned_abs())))
    }
}

impl RoundedToOdd for u64 {
    #[inline(always)]
    fn rounded_to_odd(self) -> f32 {
        let near = self as f32;
        // At most 2^64.
        odd(near, Some((near as u128).cmp(&u128::from(self))))
    }
}

/// By a wider type that holds all of them.
macro_rules! by_wider {
    ($wide:ident: $($number:ident)*) => {$(
        impl RoundedToOdd for $number {
            #[inline(always)]
            fn rounded_to_odd(self) -> f32 {
                $wide::from(self).rounded_to_odd()
            }
        }
    )*};
}

by_wider!(i64: i32 u32);

/// A number rounded "to odd". `near` is the nearest `f32`, and `size` compares its magnitude with the number's. The result is `near` if
/// it is exact, else the one of the two neighbouring `f32` whose last bit is 1. Rounding this to a type with at least two bits less gives
/// the same as rounding the number itself (Boldo and Melquiond, "When double rounding is odd", 2005).
#[inline(always)]
fn odd(near: f32, size: Option<Ordering>) -> f32 {
    match size {
        Some(Ordering::Less) => f32::from_bits(near.to_bits() | 1),
        // Not zero, because its magnitude is larger than another one.
        Some(Ordering::Greater) => f32::from_bits((near.to_bits() - 1) | 1),
        Some(Ordering::Equal) | None => near,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits with a sign of every kind: zeros, subnormal and normal numbers, infinities, NaNs.
    const BITS: [u16; 16] = [
        0, 1, 0x03ff, 0x0400, 0x3c00, 0x3f80, 0x7bff, 0x7c00, 0x7c01, 0x7e00, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7ffe,
        0x7fff,
    ];

    fn compared_as_f32<T: Float<Wide = f32>>(from_bits: fn(u16) -> T) {
        for x in (0..=u16::MAX).map(from_bits) {
            for y in BITS.into_iter().flat_map(|bits| [bits, bits | 0x8000]).map(from_bits) {
                let (a, b, x, y) = (x.compared(), y.compared(), x.wide(), y.wide());
                assert_eq!((a < b, a <= b, a == b), (x < y, x <= y, x == y), "{x:e} and {y:e}");
                assert_eq!((a > b, a >= b, a != b), (x > y, x >= y, x != y), "{x:e} and {y:e}");
                assert_eq!(a.partial_cmp(&b), x.partial_cmp(&y), "{x:e} and {y:e}");
            }
            let sign = x.sign();
            assert!(sign.wide() == Number::sign(x.wide()) || x.is_nan() && sign.is_nan());
        }
    }

    #[test]
    fn numbers_are_ordered_as_f32() {
        compared_as_f32(f16::from_bits);
        compared_as_f32(bf16::from_bits);
    }
}

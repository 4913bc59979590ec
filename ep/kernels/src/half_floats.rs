//! The 16-bit floats, `f16` and `bf16`: computed in `f32`, and rounded once.
//!
//! For `+ - * /` and the square root, rounding the `f32` result gives the same value as rounding the exact result, because an `f32` has
//! more than twice the significant bits of either type, and two to spare (Figueroa, "When is double rounding innocuous?", 1995).
//! Subnormal results of `bf16` are an exception.

use std::cmp::Ordering;

use half::{bf16, f16};

use crate::binary16;
use crate::number::{Float, Number};

macro_rules! half_float {
    ($float:ident by $wide:path, $rounded:path: sum overflows $overflows:literal, binary $($binary:ident)*) => {
        impl Number for $float {
            type Compared = f32;
            type Sum = f32;

            const IS_FLOAT: bool = true;
            const SUM_OVERFLOWS: bool = $overflows;
            const ZERO: $float = $float::ZERO;
            const ONE: $float = $float::ONE;
            const LOWEST: $float = $float::NEG_INFINITY;
            const HIGHEST: $float = $float::INFINITY;

            $(
                #[inline(always)]
                fn $binary(self, other: $float) -> $float {
                    $float::rounded(Number::$binary(self.wide(), other.wide()))
                }
            )*

            #[inline(always)]
            fn neg(self) -> $float {
                -self
            }

            #[inline(always)]
            fn abs(self) -> $float {
                $float::from_bits(self.to_bits() & 0x7fff)
            }

            #[inline(always)]
            fn sign(self) -> $float {
                $float::rounded(Number::sign(self.wide()))
            }

            #[inline(always)]
            fn compared(self) -> f32 {
                self.wide()
            }

            #[inline(always)]
            fn to_sum(self) -> f32 {
                self.wide()
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
                $float::is_nan(self)
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

            #[inline(always)]
            fn is_bad_divisor(self) -> bool {
                false
            }

            #[inline(always)]
            fn bad_exponent(self) -> Option<i64> {
                None
            }
        }

        impl Float for $float {
            type Wide = f32;
            const IS_HALF: bool = true;

            #[inline(always)]
            fn wide(self) -> f32 {
                $wide(self)
            }

            #[inline(always)]
            fn rounded(wide: f32) -> $float {
                $rounded(wide)
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

        impl Nearest<f32> for $float {
            #[inline(always)]
            fn nearest(number: f32) -> $float {
                $float::rounded(number)
            }
        }

        // Not by `from_f64`, which on some processors rounds twice and on others truncates.
        impl Nearest<f64> for $float {
            #[inline(always)]
            fn nearest(number: f64) -> $float {
                let near = number as f32;
                $float::rounded(odd(near, f64::from(near.abs()).partial_cmp(&number.abs())))
            }
        }

        impl Nearest<i64> for $float {
            #[inline(always)]
            fn nearest(number: i64) -> $float {
                let near = number as f32;
                // At most 2^63, which fits `u64`.
                $float::rounded(odd(near, Some((near.abs() as u64).cmp(&number.unsigned_abs()))))
            }
        }

        impl Nearest<u64> for $float {
            #[inline(always)]
            fn nearest(number: u64) -> $float {
                let near = number as f32;
                // At most 2^64.
                $float::rounded(odd(near, Some((near as u128).cmp(&u128::from(number)))))
            }
        }

        nearest_half!($float: i64 of i32, u32);
        nearest_half!($float: f32 of i8, u8, i16, u16);
    };
}

/// Of integers that the wider type holds exactly.
macro_rules! nearest_half {
    ($float:ident: $wide:ident of $($int:ident),*) => {$(
        impl Nearest<$int> for $float {
            #[inline(always)]
            fn nearest(number: $int) -> $float {
                $float::nearest($wide::from(number))
            }
        }
    )*};
}

// An `f32` can hold the sum of 2^112 of the largest `f16`, but of only one of the largest `bf16`.
half_float!(f16 by binary16::wide, binary16::rounded: sum overflows false, binary add sub mul div floor_div remainder pow);
half_float!(bf16 by bf16::to_f32, bf16::from_f32: sum overflows true, binary add sub mul div floor_div remainder pow);

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

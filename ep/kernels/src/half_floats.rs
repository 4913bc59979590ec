//! The 16-bit floats, `f16` and `bf16`: computed in `f32`, and rounded once.
//!
//! For `+ - * /` and the square root, rounding the `f32` result gives the same value as rounding the exact result, because an `f32` has
//! more than twice the significant bits of either type, and two to spare (Figueroa, "When is double rounding innocuous?", 1995).
//! Subnormal results of `bf16` are an exception.

use std::cmp::Ordering;

use half::{bf16, f16};

use crate::binary16;
use crate::halves::Half;
use crate::number::{Float, Number};
use crate::rows::{self, BLOCK, Block, InRow, OutRow};

macro_rules! half_float {
    ($float:ident as $half:ident by $wide:path, $rounded:path: sum overflows $overflows:literal, binary $($binary:ident)*) => {
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
        }

        impl Float for $float {
            type Wide = f32;
            const HALF: Option<Half> = Some(Half::$half);

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

        impl<N: RoundedToOdd> Nearest<N> for $float {
            #[inline(always)]
            fn nearest(number: N) -> $float {
                $float::rounded(number.rounded_to_odd())
            }
        }
    };
}

// An `f32` can hold the sum of 2^112 of the largest `f16`, but of only one of the largest `bf16`.
half_float!(f16 as F16 by binary16::wide, binary16::rounded: sum overflows false, binary add sub mul div floor_div remainder pow);
half_float!(bf16 as BF16 by bf16::to_f32, bf16::from_f32: sum overflows true, binary add sub mul div floor_div remainder pow);

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

/// Writes the elements of a row, side by side, in the type of computations.
///
/// # Safety
///
/// * `length` elements of `from` are as [`InRow::get`] requires; as many may be written from `to` on. None of one side is one of the other.
#[inline]
pub(super) unsafe fn widen_row<T: Float>(length: usize, to: *mut T::Wide, from: InRow<T>) {
    match T::HALF {
        // SAFETY: the caller guarantees this; the types of computations of 16-bit floats is `f32`.
        Some(half) => unsafe {
            widen_halves(half, length, to.cast(), InRow { first: from.first.cast(), stride: from.stride })
        },
        // SAFETY: as above; both types are the same.
        None if from.stride == 1 => unsafe { to.cast::<T>().copy_from_nonoverlapping(from.first, length) },
        // SAFETY: as above.
        None => unsafe { rows::copy(length, OutRow { first: to.cast::<T>(), stride: 1 }, from) },
    }
}

/// Writes the elements that are nearest to numbers, which lie side by side, to a row.
///
/// # Safety
///
/// * `length` elements of `to` are as [`OutRow::set`] requires; as many may be read from `from` on. None of one side is one of the other.
#[inline]
pub(super) unsafe fn round_row<T: Float>(length: usize, to: OutRow<T>, from: *const T::Wide) {
    match T::HALF {
        // SAFETY: the caller guarantees this; the types of computations of 16-bit floats is `f32`.
        Some(half) => unsafe {
            round_halves(half, length, OutRow { first: to.first.cast(), stride: to.stride }, from.cast())
        },
        // SAFETY: as above; both types are the same.
        None if to.stride == 1 => unsafe { to.first.copy_from_nonoverlapping(from.cast(), length) },
        // SAFETY: as above.
        None => unsafe { rows::copy(length, to, InRow { first: from.cast::<T>(), stride: 1 }) },
    }
}

/// [`widen_row`].
///
/// # Safety
///
/// * As for [`widen_row`].
unsafe fn widen_halves(half: Half, length: usize, to: *mut f32, from: InRow<u16>) {
    if from.stride == 1 {
        // SAFETY: the caller guarantees this.
        return unsafe { half.widen(length, to, from.first) };
    }
    let mut block = Block::new();
    for first in (0..length).step_by(BLOCK) {
        let count = BLOCK.min(length - first);
        // SAFETY: the caller guarantees the elements.
        let from = unsafe { block.copied(count, from.from(first)) };
        // SAFETY: as above; these are elements side by side.
        unsafe { half.widen(count, to.wrapping_add(first), from.first) };
    }
}

/// [`round_row`].
///
/// # Safety
///
/// * As for [`round_row`].
unsafe fn round_halves(half: Half, length: usize, to: OutRow<u16>, from: *const f32) {
    if to.stride == 1 {
        // SAFETY: the caller guarantees this.
        return unsafe { half.round(length, to.first, from) };
    }
    let mut block = Block::new();
    for first in (0..length).step_by(BLOCK) {
        let (count, to) = (BLOCK.min(length - first), to.from(first));
        // SAFETY: the caller guarantees the elements; a room has stride 1.
        unsafe { half.round(count, block.room(to).first, from.wrapping_add(first)) };
        // SAFETY: the results are written; the caller guarantees the elements of `to`.
        unsafe { block.scatter(count, to) };
    }
}

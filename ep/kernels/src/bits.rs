//! Operations on the bits of integers. A bool is a byte, 0 or 1, for which and, or and exclusive or are those of its bits.

use crate::number::Number;

/// An integer as its bits.
pub(super) trait Bits: Number {
    fn bit_and(self, other: Self) -> Self;
    fn bit_or(self, other: Self) -> Self;
    fn bit_xor(self, other: Self) -> Self;
    fn bit_not(self) -> Self;
    /// The bits moved up; 0 if the count is not one of 0 to the number of bits less 1.
    fn shl(self, count: Self) -> Self;
    /// The bits moved down, with copies of the sign above them; only such copies if the count is not one of 0 to the number of bits less 1.
    fn shr(self, count: Self) -> Self;
}

macro_rules! integers {
    ($($int:ident as $unsigned:ident;)*) => {$(
        impl Bits for $int {
            #[inline(always)]
            fn bit_and(self, other: $int) -> $int {
                self & other
            }

            #[inline(always)]
            fn bit_or(self, other: $int) -> $int {
                self | other
            }

            #[inline(always)]
            fn bit_xor(self, other: $int) -> $int {
                self ^ other
            }

            #[inline(always)]
            fn bit_not(self) -> $int {
                !self
            }

            #[inline(always)]
            fn shl(self, count: $int) -> $int {
                // A negative count is a large unsigned one.
                let is_in_range = (count as $unsigned) < $int::BITS as $unsigned;
                if is_in_range { self.wrapping_shl(count as u32) } else { 0 }
            }

            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
            fn shr(self, count: $int) -> $int {
                let is_in_range = (count as $unsigned) < $int::BITS as $unsigned;
                let emptied = if self < 0 { !0 } else { 0 };
                if is_in_range { self.wrapping_shr(count as u32) } else { emptied }
            }
        }
    )*};
}

integers! {
    i8 as u8;
    i16 as u16;
    i32 as u32;
    i64 as u64;
    u8 as u8;
    u16 as u16;
    u32 as u32;
    u64 as u64;
}

//! `f16` to `f32` and back without a branch, so that loops over them become vector code on any processor.
//!
//! The conversions of the `half` crate ask for the processor's features at each element, which took three times as
//! long. These are Fabian Giesen's ("float->half variants", public domain), with every case computed and one chosen.

use half::f16;

/// Significant bits that an `f16` has fewer.
const SHIFT: u32 = 23 - 10;

/// The exponent bits of the `f32` of 2 to the power `exponent`.
const fn power(exponent: i32) -> u32 {
    ((127 + exponent) as u32) << 23
}

/// The `f32` that `narrow` is.
#[inline(always)]
pub(super) fn wide(narrow: f16) -> f32 {
    let bits = u32::from(narrow.to_bits());
    let size = (bits & 0x7fff) << SHIFT;
    let normal = size + (112 << 23);
    // Subnormal: its bits are the fraction of what has the smallest normal exponent.
    let subnormal = f32::from_bits(normal + (1 << 23)) - f32::from_bits(power(-14));
    let wide = if size >= 0x7c00 << SHIFT {
        normal + (112 << 23)
    } else if size < 0x0400 << SHIFT {
        subnormal.to_bits()
    } else {
        normal
    };
    f32::from_bits(wide | (bits & 0x8000) << 16)
}

/// The nearest `f16` to `wide`, ties to even.
#[inline(always)]
pub(super) fn rounded(wide: f32) -> f16 {
    let bits = wide.to_bits();
    let size = bits & 0x7fff_ffff;
    // Half a step less one, and one more if the last bit that stays is 1: what carries rounds up.
    let normal = size.wrapping_sub(112 << 23).wrapping_add(0x0fff + (size >> SHIFT & 1)) >> SHIFT;
    // Adding what has a step of 2^-24 rounds to that.
    let subnormal = (f32::from_bits(size) + f32::from_bits(power(-1))).to_bits().wrapping_sub(power(-1));
    let narrow = if size > 0x7f80_0000 {
        0x7e00 | size >> SHIFT & 0x03ff
    } else if size >= power(16) {
        0x7c00
    } else if size < power(-14) {
        subnormal
    } else {
        normal
    };
    f16::from_bits((narrow | (bits >> 16 & 0x8000)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_the_f32_that_half_says() {
        for bits in 0..=u16::MAX {
            let narrow = f16::from_bits(bits);
            let (found, expected) = (wide(narrow), narrow.to_f32_const());
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{bits:#06x}");
        }
    }

    #[test]
    fn f32_of_every_exponent_round_as_half_says() {
        // Every exponent and sign with fractions around what is cut off, and some of all lengths.
        for head in 0..1 << 16 {
            for tail in [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0xf000, 0xffff] {
                let number = f32::from_bits(head << 16 | tail);
                let (found, expected) = (rounded(number), f16::from_f32_const(number));
                assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{number:e}");
            }
        }
    }
}

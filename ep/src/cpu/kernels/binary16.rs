//! Conversions of `f16` to `f32` and back without branches, so that loops over them are vectorised on any processor.
//!
//! The conversions of the `half` crate test the processor's features for each element, which is slower. These are Fabian Giesen's
//! ("float->half variants", public domain), with all cases computed and one selected.

use half::f16;

/// The number of significant bits that an `f32` has more than an `f16`.
const SHIFT: u32 = 23 - 10;

/// The bits of the `f32` 2^`exponent`.
const fn power(exponent: i32) -> u32 {
    ((127 + exponent) as u32) << 23
}

/// The exact `f32` value of `narrow`.
#[inline(always)]
pub(super) fn wide(narrow: f16) -> f32 {
    let bits = u32::from(narrow.to_bits());
    let size = (bits & 0x7fff) << SHIFT;
    let normal = size + (112 << 23);
    // Subnormal: its bits are the fraction of a number with the smallest normal exponent.
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
    // Adds half a step less one, and one more if the last kept bit is 1, so that a carry rounds to nearest, ties to even.
    let normal = size.wrapping_sub(112 << 23).wrapping_add(0x0fff + (size >> SHIFT & 1)) >> SHIFT;
    // Adding a number whose step is 2^-24 rounds to that step.
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
        // Every exponent and sign, with fractions around the bits that are cut off, and some of other lengths.
        for head in 0..1 << 16 {
            for tail in [0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0xf000, 0xffff] {
                let number = f32::from_bits(head << 16 | tail);
                let (found, expected) = (rounded(number), f16::from_f32_const(number));
                assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{number:e}");
            }
        }
    }
}

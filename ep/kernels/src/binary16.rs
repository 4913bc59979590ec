//! Conversions of `f16` to `f32` and back without branches, so that loops over them are vectorised on any processor.
//!
//! The conversions of the `half` crate test the processor's features for each element, which is slower. These are Fabian Giesen's
//! ("float->half variants", public domain), with all cases computed and one selected.

use half::f16;

use crate::rows::{InRow, Map1, OutRow};
use crate::simd_dispatch;

/// The number of significant bits that an `f32` has more than an `f16`.
const SHIFT: u32 = 23 - 10;

/// The bits of the `f32` 2^`exponent`.
const fn power(exponent: i32) -> u32 {
    ((127 + exponent) as u32) << 23
}

/// Writes `rounded` of each `f32`, by the processor's instruction where it has one.
///
/// # Safety
///
/// * `count` elements may be read from `from` on, and written from `to` on. They are aligned, and none of one side is one of the other.
pub(super) unsafe fn round(count: usize, to: *mut f16, from: *const f32) {
    #[cfg(target_arch = "x86_64")]
    if has_f16c() {
        // SAFETY: the processor has the instructions, and the caller guarantees the elements.
        return unsafe { f16c::round(count, to, from) };
    }
    let (to, from) = (OutRow { first: to, stride: 1 }, InRow { first: from, stride: 1 });
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { Map1::new(count, to, from, rounded) });
}

/// Writes `wide` of each `f16`, by the processor's instruction where it has one.
///
/// # Safety
///
/// * As for [`round`].
pub(super) unsafe fn widen(count: usize, to: *mut f32, from: *const f16) {
    #[cfg(target_arch = "x86_64")]
    if has_f16c() {
        // SAFETY: the processor has the instructions, and the caller guarantees the elements.
        return unsafe { f16c::widen(count, to, from) };
    }
    let (to, from) = (OutRow { first: to, stride: 1 }, InRow { first: from, stride: 1 });
    // SAFETY: the caller guarantees this.
    simd_dispatch::run(unsafe { Map1::new(count, to, from, wide) });
}

/// Whether the processor has these instructions, and the system keeps the registers that they use.
#[cfg(target_arch = "x86_64")]
fn has_f16c() -> bool {
    is_x86_feature_detected!("avx") && is_x86_feature_detected!("f16c")
}

/// Conversions by the instructions of x86 processors since 2012, eight at a time.
#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::*;

    use super::f16;

    /// Rounds `count` elements, eight at a time. The last eight may be some of those before; fewer are rounded one by one.
    ///
    /// # Safety
    ///
    /// * The processor has AVX and F16C.
    /// * `count` elements of `from` may be read, and of `to` written. None of one side is one of the other.
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn round(count: usize, to: *mut f16, from: *const f32) {
        if count < 8 {
            for i in 0..count {
                // SAFETY: the caller guarantees this element.
                let wide = _mm_set_ss(unsafe { from.wrapping_add(i).read() });
                let narrow = _mm_cvtsi128_si32(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide));
                // SAFETY: as above.
                unsafe { to.wrapping_add(i).write(f16::from_bits(narrow as u16)) };
            }
            return;
        }
        for i in (0..count).step_by(8).map(|i| i.min(count - 8)) {
            // SAFETY: the caller guarantees these 8 elements.
            let wide = unsafe { _mm256_loadu_ps(from.wrapping_add(i)) };
            let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(to.wrapping_add(i).cast(), narrow) };
        }
    }

    /// Widens `count` elements, as [`round`].
    ///
    /// # Safety
    ///
    /// * As for [`round`].
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn widen(count: usize, to: *mut f32, from: *const f16) {
        if count < 8 {
            for i in 0..count {
                // SAFETY: the caller guarantees this element.
                let narrow = unsafe { from.wrapping_add(i).read() };
                let wide = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(narrow.to_bits()))));
                // SAFETY: as above.
                unsafe { to.wrapping_add(i).write(wide) };
            }
            return;
        }
        for i in (0..count).step_by(8).map(|i| i.min(count - 8)) {
            // SAFETY: the caller guarantees these 8 elements.
            let narrow = unsafe { _mm_loadu_si128(from.wrapping_add(i).cast()) };
            let wide = _mm256_cvtph_ps(narrow);
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to.wrapping_add(i), wide) };
        }
    }
}

/// The exact `f32` value of `narrow`.
#[inline(always)]
pub(super) fn wide(narrow: f16) -> f32 {
    let bits = u32::from(narrow.to_bits());
    let size = (bits & 0x7fff) << SHIFT;
    let normal = size + (112 << 23);
    // Subnormal: its bits are the fraction of a number with the smallest normal exponent.
    let subnormal = f32::from_bits(normal + (1 << 23)) - f32::from_bits(power(-14));
    let wide = if size > 0x7c00 << SHIFT {
        // A NaN becomes quiet, as the instructions of processors make it.
        (normal + (112 << 23)) | (1 << 22)
    } else if size == 0x7c00 << SHIFT {
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
    fn rows_have_the_bits_of_elements() {
        let narrow: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).chain([f16::NAN]).collect();
        let mut widened = vec![0f32; narrow.len()];
        // SAFETY: both have as many elements.
        unsafe { widen(narrow.len(), widened.as_mut_ptr(), narrow.as_ptr()) };
        assert!(narrow.iter().zip(&widened).all(|(&narrow, found)| found.to_bits() == wide(narrow).to_bits()));
        let numbers: Vec<f32> = (0..1 << 16)
            .flat_map(|head| [0, 0x0fff, 0x1000, 0x3001, 0xffff].map(|tail| head << 16 | tail))
            .map(f32::from_bits)
            .collect();
        let mut found = vec![f16::ZERO; numbers.len()];
        // SAFETY: as above.
        unsafe { round(numbers.len(), found.as_mut_ptr(), numbers.as_ptr()) };
        assert!(numbers.iter().zip(&found).all(|(&number, found)| found.to_bits() == rounded(number).to_bits()));
        // Rows that are shorter than a vector.
        for (numbers, (narrow, length)) in numbers.chunks(7).zip(narrow.chunks(7).zip([1, 3, 7].into_iter().cycle())) {
            let (mut found, mut widened) = ([f16::ZERO; 7], [0f32; 7]);
            let length = length.min(numbers.len()).min(narrow.len());
            // SAFETY: all have at least as many elements.
            unsafe { round(length, found.as_mut_ptr(), numbers.as_ptr()) };
            // SAFETY: as above.
            unsafe { widen(length, widened.as_mut_ptr(), narrow.as_ptr()) };
            for place in 0..length {
                assert_eq!(found[place].to_bits(), rounded(numbers[place]).to_bits(), "{:e}", numbers[place]);
                assert_eq!(widened[place].to_bits(), wide(narrow[place]).to_bits(), "{:#06x}", narrow[place].to_bits());
            }
        }
    }

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

//! 16-bit floats that lie side by side as `f32`, and back.

use half::{bf16, f16};
use streamvm_ep::DType;

use crate::binary16;
use crate::rows::SideBySide;
use crate::simd_dispatch;

/// A type of 16-bit floats.
#[derive(Copy, Clone)]
pub(super) enum Half {
    F16,
    BF16,
}

impl Half {
    pub(super) fn of(dtype: DType) -> Option<Half> {
        match dtype {
            DType::F16 => Some(Half::F16),
            DType::BF16 => Some(Half::BF16),
            _ => None,
        }
    }

    /// Writes the exact `f32` values of 16-bit floats.
    ///
    /// # Safety
    ///
    /// * `count` elements may be read from `from` on, and written from `to` on. They are aligned, and none of one side is one of the other.
    pub(super) unsafe fn widen(self, count: usize, to: *mut f32, from: *const u16) {
        match self {
            // SAFETY: the caller guarantees this.
            Half::F16 => unsafe { binary16::widen(count, to, from.cast()) },
            // SAFETY: as above.
            Half::BF16 => simd_dispatch::run_wide(unsafe { SideBySide::new(count, to, from.cast(), wide) }),
        }
    }

    /// Writes the nearest 16-bit floats to `f32`.
    ///
    /// # Safety
    ///
    /// * As for [`widen`](Half::widen).
    pub(super) unsafe fn round(self, count: usize, to: *mut u16, from: *const f32) {
        match self {
            // SAFETY: the caller guarantees this.
            Half::F16 => unsafe { binary16::round(count, to.cast::<f16>(), from) },
            // SAFETY: as above.
            Half::BF16 => simd_dispatch::run_wide(unsafe { SideBySide::new(count, to.cast(), from, rounded) }),
        }
    }
}

/// `bf16::to_f32` without a branch.
#[inline(always)]
pub(super) fn wide(narrow: bf16) -> f32 {
    let bits = narrow.to_bits();
    // A NaN becomes quiet. Compared as 16 bits, of which a vector has twice as many.
    let quiet = if bits & 0x7fff > 0x7f80 { 1 << 6 } else { 0 };
    f32::from_bits(u32::from(bits | quiet) << 16)
}

/// `bf16::from_f32` without a branch.
#[inline(always)]
pub(super) fn rounded(wide: f32) -> bf16 {
    let bits = wide.to_bits();
    // Adds half a step less one, and one more if the last kept bit is 1, so that a carry rounds to nearest, ties to even.
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let nan = bits | 1 << 22;
    bf16::from_bits(((if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { nearest }) >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_of_bf16_have_the_bits_of_half() {
        for bits in 0..=u16::MAX {
            assert_eq!(wide(bf16::from_bits(bits)).to_bits(), bf16::from_bits(bits).to_f32().to_bits());
            for tail in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let number = f32::from_bits(u32::from(bits) << 16 | tail);
                assert_eq!(rounded(number).to_bits(), bf16::from_f32(number).to_bits(), "{number:e}");
            }
        }
    }
}

//! The order of elements that argsort and argtopk go by, as an unsigned integer for each element: its *key*. Kernels compare keys alone, so that every dtype
//! is sorted by the same code, on a CPU and on a CUDA device.
//!
//! Elements that count as equal have equal keys: zeros of both signs, and all NaNs, which come after infinity.

use crate::tensor::dtype::DType;

/// How the bits of an element become its key. `sort.cu` has the same steps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// The bits that a key has: as many as the element.
    mask: u64,
    /// The sign bit of a float or a signed integer; 0 for others.
    pub sign: u64,
    /// The bits of infinity of a float; for others all bits of the element. Larger bits without the sign are those of a NaN.
    pub infinity: u64,
    /// Whether the largest elements have the smallest keys.
    pub descending: bool,
}

impl SortKey {
    /// The keys of elements of this dtype.
    pub fn new(dtype: DType, descending: bool) -> SortKey {
        let mask = u64::MAX >> (64 - 8 * dtype.size());
        let top = mask - (mask >> 1);
        let (sign, infinity) = match dtype {
            DType::F32 => (top, f32::INFINITY.to_bits().into()),
            DType::F64 => (top, f64::INFINITY.to_bits()),
            DType::F16 => (top, half::f16::INFINITY.to_bits().into()),
            DType::BF16 => (top, half::bf16::INFINITY.to_bits().into()),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => (top, mask),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => (0, mask),
        };
        SortKey { mask, sign, infinity, descending }
    }

    /// The key of an element with these bits. Keys are in the order in which argsort gives their elements.
    #[inline(always)]
    pub fn of(self, bits: u64) -> u64 {
        let is_float = self.infinity != self.mask;
        let bits = if is_float && bits == self.sign { 0 } else { bits };
        // The bits of negative floats count away from zero, those of negative integers towards it.
        let inverted = if is_float && bits & self.sign != 0 { self.mask ^ self.sign } else { 0 };
        let key = bits ^ self.sign ^ inverted;
        let key = if bits & !self.sign > self.infinity { self.mask } else { key };
        if self.descending { key ^ self.mask } else { key }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Checks that the keys of these elements, which are in order, are in order, and that descending keys are in the opposite order.
    fn in_order(dtype: DType, elements: &[u64]) {
        for (a, b) in elements.iter().zip(&elements[1..]) {
            let [up, down] = [false, true].map(|descending| SortKey::new(dtype, descending));
            assert!(up.of(*a) < up.of(*b), "{dtype}: {a:#x} before {b:#x}");
            assert!(down.of(*a) > down.of(*b), "{dtype}: {a:#x} after {b:#x}");
            assert!(up.of(*b) <= up.mask && down.of(*a) <= down.mask, "{dtype}: a key has the bits of the element");
        }
    }

    #[test]
    fn keys_are_in_the_order_of_elements() {
        let floats = [f64::NEG_INFINITY, -1.5, -1.0, -1e-7, 0.0, 1e-7, 1.0, 1.5, f64::INFINITY, f64::NAN];
        in_order(DType::F64, &floats.map(f64::to_bits));
        in_order(DType::F32, &floats.map(|x| (x as f32).to_bits().into()));
        in_order(DType::F16, &floats.map(|x| f16::from_f64(x).to_bits().into()));
        in_order(DType::BF16, &floats.map(|x| bf16::from_f64(x).to_bits().into()));
        in_order(DType::I8, &[i8::MIN, -1, 0, 1, i8::MAX].map(|x| u64::from(x as u8)));
        in_order(DType::I16, &[i16::MIN, -1, 0, 1, i16::MAX].map(|x| u64::from(x as u16)));
        in_order(DType::I32, &[i32::MIN, -1, 0, 1, i32::MAX].map(|x| u64::from(x as u32)));
        in_order(DType::I64, &[i64::MIN, -1, 0, 1, i64::MAX].map(|x| x as u64));
        in_order(DType::U64, &[0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX]);
        in_order(DType::U8, &[0, 1, 127, 128, 255]);
        in_order(DType::Bool, &[0, 1]);
    }

    #[test]
    fn zeros_are_equal_and_so_are_nans() {
        for descending in [false, true] {
            let key = SortKey::new(DType::F32, descending);
            assert_eq!(key.of((-0.0f32).to_bits().into()), key.of(0.0f32.to_bits().into()));
            for nan in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffff_ffff] {
                assert_eq!(key.of(nan), key.of(f32::NAN.to_bits().into()), "{nan:#x}");
            }
        }
    }
}

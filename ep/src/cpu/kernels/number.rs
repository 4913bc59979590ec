//! Arithmetic of elements: the definition of the ops for each type.
//!
//! Integers wrap. Integer division truncates toward zero. Kernels refuse a zero divisor and a negative exponent before they compute, so
//! [`Number::div`] and [`Number::pow`] need not.

use half::{bf16, f16};

use crate::cpu::kernels::{activations, math};
use crate::tensor::dtype::DType;

/// A dtype as a Rust type, with the storage type of its elements.
pub(super) trait DTypeTag {
    /// The storage of one element; for bool a byte, 0 or 1.
    type Store: Number;
    const DTYPE: DType;
}

macro_rules! tags {
    ($($tag:ty => $store:ty, $dtype:ident;)*) => {$(
        impl DTypeTag for $tag {
            type Store = $store;
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

tags! {
    f32 => f32, F32;
    f64 => f64, F64;
    f16 => f16, F16;
    bf16 => bf16, BF16;
    i32 => i32, I32;
    i64 => i64, I64;
    u8 => u8, U8;
    bool => u8, Bool;
}

/// An element type with arithmetic.
pub(super) trait Number: Copy + PartialOrd + Send + Sync + 'static {
    /// The type of sums: `f64` for `f32` and `f64`, so that a sum of many `f32` is rounded once, and `f32` for 16-bit floats.
    type Sum: Number;

    const IS_FLOAT: bool;
    /// Whether a sum of few elements can exceed the range of [`Sum`](Number::Sum). Integers wrap instead.
    const SUM_OVERFLOWS: bool;
    const ZERO: Self;
    /// The smallest value.
    const LOWEST: Self;
    /// The largest value.
    const HIGHEST: Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn pow(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn to_sum(self) -> Self::Sum;
    fn from_sum(sum: Self::Sum) -> Self;
    /// The nearest `f64`; exact for floats.
    fn to_f64(self) -> f64;
    /// The nearest number to `wide`, rounded once.
    fn from_f64(wide: f64) -> Self;

    /// Whether division by this value fails.
    fn is_bad_divisor(self) -> bool;
    /// The value, if it is a negative integer, which cannot be an exponent.
    fn bad_exponent(self) -> Option<i64>;

    /// Whether it is NaN.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "only NaN differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }

    /// Whether it is larger, without a branch. NaN compares in any way, and zeros of two signs may count as different.
    #[inline(always)]
    fn exceeds(self, other: Self) -> bool {
        self > other
    }

    /// The smaller value; NaN if either is NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if self < other || self.is_nan() { self } else { other }
    }

    /// The larger value; NaN if either is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self > other || self.is_nan() { self } else { other }
    }

    /// The larger of this and 0; NaN stays NaN.
    #[inline(always)]
    fn relu(self) -> Self {
        if self > Self::ZERO || self.is_nan() { self } else { Self::ZERO }
    }
}

/// A floating-point element type.
pub(super) trait Float: Number {
    /// The type of computations: `Self`, or `f32` for 16-bit floats.
    type Wide: Float<Sum = f64, Wide = Self::Wide>;
    /// Whether [`Wide`](Float::Wide) is another type, so that each stored step is rounded.
    const IS_HALF: bool;

    fn wide(self) -> Self::Wide;
    /// The nearest value to `wide`, ties to even.
    fn rounded(wide: Self::Wide) -> Self;
    /// `self * by + add`, rounded once.
    fn mul_add(self, by: Self, add: Self) -> Self;
    /// [`math`](crate::cpu::kernels::math) states the bounds on the errors of this function, `log`, `tanh` and `sigmoid`.
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn sigmoid(self) -> Self;
    /// [`activations`](crate::cpu::kernels::activations) states the bounds on the errors of this function, `gelu`, `gelu_tanh` and `silu`.
    fn erf(self) -> Self;
    fn gelu(self) -> Self;
    fn gelu_tanh(self) -> Self;
    fn silu(self) -> Self;
    /// The reciprocal of the square root: two operations that are rounded.
    fn rsqrt(self) -> Self;
    /// The mean of `count` elements with this sum.
    fn mean(sum: Self::Sum, count: usize) -> Self;
}

macro_rules! floats {
    ($($float:ident by $math:ident: sum overflows $overflows:literal),*) => {$(
        impl Number for $float {
            type Sum = f64;

            const IS_FLOAT: bool = true;
            const SUM_OVERFLOWS: bool = $overflows;
            const ZERO: $float = 0.0;
            const LOWEST: $float = $float::NEG_INFINITY;
            const HIGHEST: $float = $float::INFINITY;

            #[inline(always)]
            fn add(self, other: $float) -> $float {
                self + other
            }

            #[inline(always)]
            fn sub(self, other: $float) -> $float {
                self - other
            }

            #[inline(always)]
            fn mul(self, other: $float) -> $float {
                self * other
            }

            #[inline(always)]
            fn div(self, other: $float) -> $float {
                self / other
            }

            #[inline(always)]
            fn pow(self, other: $float) -> $float {
                self.powf(other)
            }

            #[inline(always)]
            fn neg(self) -> $float {
                -self
            }

            #[inline(always)]
            fn abs(self) -> $float {
                $float::abs(self)
            }

            #[inline(always)]
            fn to_sum(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn from_sum(sum: f64) -> $float {
                sum as $float
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn from_f64(wide: f64) -> $float {
                wide as $float
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
            type Wide = $float;
            const IS_HALF: bool = false;

            #[inline(always)]
            fn wide(self) -> $float {
                self
            }

            #[inline(always)]
            fn rounded(wide: $float) -> $float {
                wide
            }

            #[inline(always)]
            fn mul_add(self, by: $float, add: $float) -> $float {
                $float::mul_add(self, by, add)
            }

            #[inline(always)]
            fn exp(self) -> $float {
                math::$math::exp(self)
            }

            #[inline(always)]
            fn log(self) -> $float {
                math::$math::log(self)
            }

            #[inline(always)]
            fn sqrt(self) -> $float {
                $float::sqrt(self)
            }

            #[inline(always)]
            fn tanh(self) -> $float {
                math::$math::tanh(self)
            }

            #[inline(always)]
            fn sigmoid(self) -> $float {
                math::$math::sigmoid(self)
            }

            #[inline(always)]
            fn erf(self) -> $float {
                activations::$math::erf(self)
            }

            #[inline(always)]
            fn gelu(self) -> $float {
                activations::$math::gelu(self)
            }

            #[inline(always)]
            fn gelu_tanh(self) -> $float {
                activations::$math::gelu_tanh(self)
            }

            #[inline(always)]
            fn silu(self) -> $float {
                activations::$math::silu(self)
            }

            #[inline(always)]
            fn rsqrt(self) -> $float {
                1.0 / $float::sqrt(self)
            }

            #[inline(always)]
            fn mean(sum: f64, count: usize) -> $float {
                (sum / count as f64) as $float
            }
        }
    )*};
}

floats!(f32 by single: sum overflows false, f64 by double: sum overflows true);

macro_rules! integers {
    ($($int:ident),*) => {$(
        impl Number for $int {
            type Sum = $int;

            const IS_FLOAT: bool = false;
            const SUM_OVERFLOWS: bool = false;
            const ZERO: $int = 0;
            const LOWEST: $int = $int::MIN;
            const HIGHEST: $int = $int::MAX;

            #[inline(always)]
            fn add(self, other: $int) -> $int {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn sub(self, other: $int) -> $int {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn mul(self, other: $int) -> $int {
                self.wrapping_mul(other)
            }

            /// Returns 0 for a zero divisor, which kernels refuse before.
            #[inline(always)]
            fn div(self, other: $int) -> $int {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }

            /// Exponentiation by squaring. Kernels refuse a negative exponent before; here its bits would count as a large one.
            #[inline]
            fn pow(self, other: $int) -> $int {
                let mut result: $int = 1;
                let mut square = self;
                let mut left = other as u64;
                while left > 0 {
                    if left & 1 == 1 {
                        result = result.wrapping_mul(square);
                    }
                    square = square.wrapping_mul(square);
                    left >>= 1;
                }
                result
            }

            #[inline(always)]
            fn neg(self) -> $int {
                self.wrapping_neg()
            }

            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
            fn abs(self) -> $int {
                if self < 0 { self.wrapping_neg() } else { self }
            }

            #[inline(always)]
            fn to_sum(self) -> $int {
                self
            }

            #[inline(always)]
            fn from_sum(sum: $int) -> $int {
                sum
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn from_f64(wide: f64) -> $int {
                wide as $int
            }

            #[inline(always)]
            fn is_bad_divisor(self) -> bool {
                self == 0
            }

            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
            fn bad_exponent(self) -> Option<i64> {
                (self < 0).then_some(self as i64)
            }
        }
    )*};
}

integers!(i32, i64, u8);

//! Arithmetic of elements: the definition of the ops for each type; elementwise ops that compute 16-bit floats are those of `f32`, rounded. [`Functions`] has those of one float.
//!
//! Integers wrap. Kernels refuse a zero divisor and a negative exponent before they compute, so divisions and [`Number::pow`] need not.

use half::{bf16, f16};
use streamvm_ep::{DType, KernelCall};

use crate::functions::Functions;
use crate::halves::Half;
use crate::matmul_tile::Lane;

/// A dtype as a Rust type, with the storage type of its elements.
pub(super) trait DTypeTag {
    /// The storage of one element; for bool a byte, 0 or 1.
    type Store: Number;
    /// The type that elementwise ops compute in: `f32` for 16-bit floats.
    type Computed: Computed;
    const DTYPE: DType;
    /// Of an integer, the one of the same size and the other sign. Sums, products, bits and equality have the same bits for both, so one kernel
    /// serves both: [`dtype`](DTypeTag::dtype).
    const OTHER_SIGN: Option<DType>;

    /// The dtype of the elements of a call of a kernel that may serve both signs.
    #[inline(always)]
    fn dtype(call: &KernelCall<'_, '_>) -> DType {
        let asked = call.kernel.dtype;
        if Self::OTHER_SIGN == Some(asked) { asked } else { Self::DTYPE }
    }
}

macro_rules! tags {
    ($($tag:ty => $store:ty, $computed:ty, $dtype:ident, $other:expr;)*) => {$(
        impl DTypeTag for $tag {
            type Store = $store;
            type Computed = $computed;
            const DTYPE: DType = DType::$dtype;
            const OTHER_SIGN: Option<DType> = $other;
        }
    )*};
}

tags! {
    f32 => f32, f32, F32, None;
    f64 => f64, f64, F64, None;
    f16 => f16, f32, F16, None;
    bf16 => bf16, f32, BF16, None;
    i8 => i8, i8, I8, Some(DType::U8);
    i16 => i16, i16, I16, Some(DType::U16);
    i32 => i32, i32, I32, Some(DType::U32);
    i64 => i64, i64, I64, Some(DType::U64);
    u8 => u8, u8, U8, Some(DType::I8);
    u16 => u16, u16, U16, Some(DType::I16);
    u32 => u32, u32, U32, Some(DType::I32);
    u64 => u64, u64, U64, Some(DType::I64);
    bool => u8, u8, Bool, None;
}

/// An element type with arithmetic.
pub(super) trait Number: Copy + Send + Sync + 'static {
    /// The type that elements are computed in: their own, or `f32` for 16-bit floats.
    type Computed: Number<Computed = Self::Computed>;
    /// The type in which elements are compared: their own, or a [`Key`](crate::half_floats::Key) for 16-bit floats.
    type Compared: PartialOrd;
    /// The type of sums and products: `f64` for `f32` and `f64`, so that a sum of many `f32` is rounded once, and `f32` for 16-bit floats.
    type Sum: Number;

    /// The type, if it is one of 16-bit floats.
    const HALF: Option<Half> = None;
    /// Whether elements are converted in tiles before loops over them: by instructions that the compiler does not use. The others are converted within loops.
    const IN_TILES: bool = matches!(Self::HALF, Some(Half::F16));
    const IS_FLOAT: bool;
    /// Whether a sum of few elements can exceed the range of [`Sum`](Number::Sum). Integers wrap instead.
    const SUM_OVERFLOWS: bool;
    const ZERO: Self;
    const ONE: Self;
    /// The smallest value.
    const LOWEST: Self;
    /// The largest value.
    const HIGHEST: Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Of integers truncated toward zero.
    fn div(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// 1, -1 or 0, as the number is positive, negative or a zero; NaN stays NaN.
    fn sign(self) -> Self;
    /// The value for `<`, `==` and the others; NaN is neither equal nor ordered.
    fn compared(self) -> Self::Compared;
    fn to_sum(self) -> Self::Sum;
    fn computed(self) -> Self::Computed;
    /// An element, as it is computed, as a term of a sum.
    fn sum_of(element: Self::Computed) -> Self::Sum;
    fn from_sum(sum: Self::Sum) -> Self;
    /// The nearest `f64`; exact for floats.
    fn to_f64(self) -> f64;
    /// The nearest number to `wide`, rounded once.
    fn from_f64(wide: f64) -> Self;

    /// Whether it is NaN.
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "only NaN differs from itself")]
    fn is_nan(self) -> bool {
        self.compared() != self.compared()
    }

    /// Whether it is larger, without a branch. NaN compares in any way, and zeros of two signs may count as different.
    #[inline(always)]
    fn exceeds(self, other: Self) -> bool {
        self.compared() > other.compared()
    }

    /// The smaller value; NaN if either is NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        if (self.compared() < other.compared()) | self.is_nan() { self } else { other }
    }

    /// The larger value; NaN if either is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if (self.compared() > other.compared()) | self.is_nan() { self } else { other }
    }

    /// The larger of this and 0; NaN stays NaN.
    #[inline(always)]
    fn relu(self) -> Self {
        if (self.compared() > Self::ZERO.compared()) | self.is_nan() { self } else { Self::ZERO }
    }
}

/// A type that elementwise ops compute in.
pub(super) trait Computed: Number {
    /// The largest whole number that is not above the quotient.
    fn floor_div(self, other: Self) -> Self;
    /// The remainder of [`floor_div`](Computed::floor_div), with the sign of `other`.
    fn remainder(self, other: Self) -> Self;
    fn pow(self, other: Self) -> Self;
}

/// A floating-point element type.
pub(super) trait Float: Number<Computed = <Self as Float>::Wide> {
    /// The type of computations: `Self`, or `f32` for 16-bit floats.
    type Wide: Float<Sum = f64, Wide = Self::Wide> + Functions + Lane;
    const IS_HALF: bool = Self::HALF.is_some();

    fn wide(self) -> Self::Wide;
    /// The nearest value to `wide`, ties to even.
    fn rounded(wide: Self::Wide) -> Self;
    /// A number that [`rounded`](Float::rounded) makes the nearest value to `number`.
    fn wide_of(number: f64) -> Self::Wide;
    /// `self * by + add`, rounded once.
    fn mul_add(self, by: Self, add: Self) -> Self;
    /// The mean of `count` elements with this sum.
    fn mean(sum: Self::Sum, count: usize) -> Self;
}

macro_rules! floats {
    ($($float:ident: sum overflows $overflows:literal),*) => {$(
        impl Number for $float {
            type Computed = $float;
            type Compared = $float;
            type Sum = f64;

            const IS_FLOAT: bool = true;
            const SUM_OVERFLOWS: bool = $overflows;
            const ZERO: $float = 0.0;
            const ONE: $float = 1.0;
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
            fn neg(self) -> $float {
                -self
            }

            #[inline(always)]
            fn abs(self) -> $float {
                $float::abs(self)
            }

            #[inline(always)]
            fn sign(self) -> $float {
                let sign = if self == 0.0 { 0.0 } else { (1.0 as $float).copysign(self) };
                if self.is_nan() { self } else { sign }
            }

            #[inline(always)]
            fn compared(self) -> $float {
                self
            }

            #[inline(always)]
            fn to_sum(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn computed(self) -> $float {
                self
            }

            #[inline(always)]
            fn sum_of(element: $float) -> f64 {
                f64::from(element)
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
        }

        impl Computed for $float {
            /// By the algorithm of Python and NumPy: less the exact remainder, the quotient is very nearly whole.
            #[inline(always)]
            fn floor_div(self, other: $float) -> $float {
                if other == 0.0 {
                    return self / other;
                }
                let rest = self % other;
                let quotient = (self - rest) / other;
                let is_below = rest != 0.0 && (rest < 0.0) != (other < 0.0);
                let quotient = if is_below { quotient - 1.0 } else { quotient };
                if quotient == 0.0 {
                    return (0.0 as $float).copysign(self / other);
                }
                let whole = quotient.floor();
                if quotient - whole > 0.5 { whole + 1.0 } else { whole }
            }

            #[inline(always)]
            fn remainder(self, other: $float) -> $float {
                // Exact, as IEEE 754 asks of it; NaN for a zero divisor.
                let rest = self % other;
                if rest == 0.0 {
                    (0.0 as $float).copysign(other)
                } else if (rest < 0.0) != (other < 0.0) {
                    rest + other
                } else {
                    rest
                }
            }

            #[inline(always)]
            fn pow(self, other: $float) -> $float {
                self.powf(other)
            }
        }

        impl Float for $float {
            type Wide = $float;

            #[inline(always)]
            fn wide(self) -> $float {
                self
            }

            #[inline(always)]
            fn rounded(wide: $float) -> $float {
                wide
            }

            #[inline(always)]
            fn wide_of(number: f64) -> $float {
                number as $float
            }

            #[inline(always)]
            fn mul_add(self, by: $float, add: $float) -> $float {
                $float::mul_add(self, by, add)
            }

            #[inline(always)]
            fn mean(sum: f64, count: usize) -> $float {
                (sum / count as f64) as $float
            }
        }
    )*};
}

floats!(f32: sum overflows false, f64: sum overflows true);

macro_rules! integers {
    ($($int:ident),*) => {$(
        impl Number for $int {
            type Computed = $int;
            type Compared = $int;
            type Sum = $int;

            const IS_FLOAT: bool = false;
            const SUM_OVERFLOWS: bool = false;
            const ZERO: $int = 0;
            const ONE: $int = 1;
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
            #[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
            fn sign(self) -> $int {
                if self > 0 {
                    1
                } else if self < 0 {
                    // -1
                    !0
                } else {
                    0
                }
            }

            #[inline(always)]
            fn compared(self) -> $int {
                self
            }

            #[inline(always)]
            fn to_sum(self) -> $int {
                self
            }

            #[inline(always)]
            fn computed(self) -> $int {
                self
            }

            #[inline(always)]
            fn sum_of(element: $int) -> $int {
                element
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
        }

        impl Computed for $int {
            /// Returns 0 for a zero divisor, as [`div`](Number::div).
            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
            fn floor_div(self, other: $int) -> $int {
                let (quotient, rest) = if other == 0 { (0, 0) } else { (self.wrapping_div(other), self.wrapping_rem(other)) };
                if rest != 0 && (rest < 0) != (other < 0) { quotient - 1 } else { quotient }
            }

            /// Returns 0 for a zero divisor, as [`div`](Number::div).
            #[inline(always)]
            #[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
            fn remainder(self, other: $int) -> $int {
                let rest = if other == 0 { 0 } else { self.wrapping_rem(other) };
                if rest != 0 && (rest < 0) != (other < 0) { rest + other } else { rest }
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
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

//! The error function and activations of transformers, of `f32` and `f64`, written so that loops over them are vectorised.
//!
//! They are made of the functions of [`math`](super::math), under the same rules: no branch, no table, and only operations that IEEE 754
//! rounds correctly, so that a result has the same bits in every vector and on every processor.
//!
//! | | `f32` | `f64` | algorithm |
//! |---|---|---|---|
//! | `erf` | 2 ulp | 2 ulp | up to 1 a polynomial in `x^2`; above, `1 - erfc(x)` |
//! | `gelu` | 7 ulp | 7 ulp | `max(x, 0) - abs(x) erfc(abs(x) / sqrt(2)) / 2` |
//! | `gelu_tanh` | 5 ulp | 5 ulp | `x / (1 + exp(-v))`, where `v` is twice the argument of the hyperbolic tangent |
//! | `silu` | 5 ulp | 5 ulp | `x / (1 + exp(-x))` |
//!
//! `erfc(t) = exp(-t^2) g((t - k) / (t + k)) / (1 + 2 t)`, where `g` is a polynomial (Shepherd and Laframboise, "Chebyshev Approximation of
//! (1 + 2x) exp(x^2) erfc x in 0 <= x < inf", 1981). Polynomials are Chebyshev series of the functions, computed with 40 digits; their error
//! is below a tenth of an ulp.
//!
//! The relative error of small results is bounded too: the argument of each exponential is a sum of two numbers, because the rounding of one
//! number alone would be multiplied by its size; and a power that multiplies `x` is applied in a way that underflows only in the last product.
//! At minus infinity the activations are 0, their limit. The bounds are those of the tests below.

macro_rules! functions {
    (
        $module:ident, $float:ident, tail to $end:literal around $middle:literal [$($tail:literal)*], near [$($near:literal)*],
        vanishes at $vanished:literal, cubic [$linear:literal $linear_low:literal $cubic:literal $cubic_low:literal] to $cubic_end:literal
    ) => {
        pub(super) mod $module {
            use std::hint::select_unpredictable;

            use crate::math::$module::{exp, polynomial};

            /// From here on `erfc` is 0, also where it multiplies a number of this size.
            const END: $float = $end;
            /// At minus this number the activations, and the exponentials in them, are 0.
            const VANISHED: $float = $vanished;

            /// The size of `x`, at most `end`. NaN stays.
            #[inline(always)]
            fn size(x: $float, end: $float) -> $float {
                let size = x.abs();
                if size > end { end } else { size }
            }

            /// e to the power of `high + low`, where `low` is far below 1.
            #[inline(always)]
            fn exp_of_sum(high: $float, low: $float) -> $float {
                let power = exp(high);
                power.mul_add(low, power)
            }

            /// `erfc(t) exp(t^2)` of a number from 0 to [`END`].
            #[inline(always)]
            fn scaled_erfc(t: $float) -> $float {
                const MIDDLE: $float = $middle;
                polynomial((t - MIDDLE) / (t + MIDDLE), [$($tail),*]) / t.mul_add(2.0, 1.0)
            }

            /// The error function of `x`.
            #[inline(always)]
            pub(in crate) fn erf(x: $float) -> $float {
                let size = size(x, END);
                let square = size * size;
                let lost = size.mul_add(size, -square);
                let near = size.mul_add(polynomial(square, [$($near),*]), size);
                let far = exp_of_sum(-square, -lost).mul_add(-scaled_erfc(size), 1.0);
                // With a plain condition the compiler would branch.
                select_unpredictable(size > 1.0, far, near).copysign(x)
            }

            /// `x` times the normal distribution function at `x`.
            #[inline(always)]
            pub(in crate) fn gelu(x: $float) -> $float {
                let size = size(x, END * std::$float::consts::SQRT_2);
                let square = size * size;
                let lost = size.mul_add(size, -square);
                let power = exp_of_sum(-0.5 * square, -0.5 * lost);
                let half = -0.5 * size * scaled_erfc(size * std::$float::consts::FRAC_1_SQRT_2);
                let positive = if x > 0.0 { x } else { 0.0 };
                half.mul_add(power, positive)
            }

            /// `x / (1 + exp(-v))`, where `v` has the sign of `x` and `abs(v) / 2` is `high + low`.
            #[inline(always)]
            fn weighted(x: $float, high: $float, low: $float) -> $float {
                // The root of exp(-abs(v)), which is a normal number where the result is one.
                let root = exp_of_sum(-high, -low);
                let bounded = if x < -VANISHED { -VANISHED } else { x };
                let numerator = if x < 0.0 { bounded * root * root } else { x };
                numerator / root.mul_add(root, 1.0)
            }

            /// `x / (1 + exp(-x))`.
            #[inline(always)]
            pub(in crate) fn silu(x: $float) -> $float {
                weighted(x, 0.5 * x.abs(), 0.0)
            }

            /// `x (1 + tanh(u)) / 2`, where `u = sqrt(2 / pi) (x + 0.044715 x^3)`.
            #[inline(always)]
            pub(in crate) fn gelu_tanh(x: $float) -> $float {
                // abs(u) is the size times a + b size^2: a and b in two parts, and so are products and sums.
                const A: [$float; 2] = [$linear, $linear_low];
                const B: [$float; 2] = [$cubic, $cubic_low];
                let size = size(x, $cubic_end);
                let square = size * size;
                let square_low = size.mul_add(size, -square);
                let term = B[0] * square;
                let term_low = B[0].mul_add(square, -term) + B[0].mul_add(square_low, B[1] * square);
                let sum = A[0] + term;
                let added = sum - A[0];
                let sum_low = (A[0] - (sum - added)) + (term - added) + (term_low + A[1]);
                let high = size * sum;
                let low = size.mul_add(sum, -high) + size * sum_low;
                weighted(x, high, low)
            }
        }
    };
}

functions!(
    single, f32,
    tail to 10.5 around 3.0 [
        -0.000_273_596 -0.000_788_120_7 0.002_001_771_2 0.002_576_856_4 -0.023_794_664 0.068_293_03 -0.119_271_92 0.129_646_72 -0.047_562_32
        -0.135_621_15 1.253_008
    ],
    near [7.875_875e-5 -0.000_801_686_43 0.005_189_087 -0.026_854_211 0.112_835_94 -0.376_126_26 0.128_379_17],
    vanishes at 256.0,
    cubic [0.797_884_6 -2.267_034e-8 0.035_677_407 1.199_416_2e-9] to 32.0
);

functions!(
    double, f64,
    tail to 28.0 around 4.0 [
        1.263_782_858_042_137e-9 1.868_487_385_473_519e-9 -1.409_198_262_255_575_5e-8 -1.799_947_545_903_142e-8 1.100_599_619_864_005_7e-7
        7.471_952_780_500_971e-8 -8.254_699_744_871_162e-7 2.937_785_494_344_378_6e-7 5.709_784_760_966_506e-6 -1.122_204_631_666_900_5e-5
        -2.439_924_428_312_988e-5 0.000_150_621_697_046_783_55
        -0.000_199_256_684_323_891_53 -0.000_757_773_297_366_914_6 0.005_031_969_975_753_176 -0.016_197_734_055_994_49 0.037_167_515_537_770_26
        -0.066_330_365_812_409_5 0.093_732_834_998_330_23 -0.101_039_066_036_294_59 0.068_097_054_254_693_23 0.015_379_652_102_619_558
        -0.139_621_116_840_562_53 1.232_995_118_625_552_6
    ],
    near [
        -7.795_898_827_002_142e-10 1.372_006_454_677_768_6e-8 -1.620_848_380_187_170_5e-7 1.644_742_470_331_736_2e-6 -1.492_473_690_741_966e-5
        0.000_120_552_949_048_397_07 -0.000_854_832_597_538_969_2 0.005_223_977_607_116_422_5 -0.026_866_170_643_237_77 0.112_837_916_709_450_06
        -0.376_126_389_031_835_43 0.128_379_167_095_512_56
    ],
    vanishes at 2048.0,
    cubic [0.797_884_560_802_865_4 -4.984_654_404_555_46e-17 0.035_677_408_136_300_125 -3.087_574_959_077_657_5e-19] to 32.0
);

#[cfg(test)]
#[path = "activations_tests.rs"]
mod tests;

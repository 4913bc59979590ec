//! Exponentials, logarithms, hyperbolic tangent and logistic function of `f32` and `f64`, written so that loops over them are vectorised.
//!
//! Each function computes every case without a branch or a table, and selects. It uses only operations that IEEE 754 rounds correctly:
//! `+ - * /`, the fused multiply-add, comparisons and bits. So a result has the same bits in a vector of any width, in a scalar tail and on
//! every processor. Without an instruction for it, `mul_add` calls the C library, which gives the same bits slowly.
//!
//! | | `f32` | `f64` | algorithm |
//! |---|---|---|---|
//! | `exp` | 1 ulp | 1 ulp | reduction by multiples of ln 2 in two parts (Cody and Waite, 1980), a polynomial, two powers of two |
//! | `log` | 1 ulp | 1 ulp | exponent and fraction; of the fraction a polynomial (`f32`), or the series of FreeBSD's msun (`e_log.c`) |
//! | `exp2` | 1 ulp | 1 ulp | the nearest whole number, and the exponential of the rest times ln 2 in two parts |
//! | `log2`, `log10` | 2 ulp | 2 ulp | the logarithm of the fraction times a constant in two parts, plus that of the power of two |
//! | `tanh` | 3 ulp | 3 ulp | `m / (m + 2)` with `m = expm1(2 abs(x))`, which keeps the relative error of small numbers |
//! | `sigmoid` | 3 ulp | 3 ulp | `1 / (1 + e)` or `e / (1 + e)` with `e = exp(-abs(x))`, which cannot overflow |
//!
//! These are bounds of the tests below, which compare with `f64` of the standard library and with sums of two `f64`. Polynomials for
//! `(exp(r) - 1 - r) / r^2` are minimax (Remez' algorithm) on `abs(r) <= ln(2) / 2`; their error is below a twentieth of an ulp. So is
//! that for the logarithm of `f32`.

macro_rules! functions {
    (
        $module:ident, $float:ident, $bits:ident, $signed:ident, digits $digits:literal, bias $bias:literal,
        exp from $lowest:literal to $highest:literal, exp2 from $lowest2:literal to $highest2:literal, tanh to $end:literal,
        ln2 $ln2_high:literal $ln2_low:literal, root $root:literal,
        ln2 rest $ln2_rest:literal, log2 rest $log2_rest:literal, log10 rest $log10_rest:literal of two $log10_2_rest:literal,
        exp [$($exp:literal)*], log by $log:ident half $half:literal
    ) => {
        pub(super) mod $module {
            use std::hint::select_unpredictable;

            /// The explicit bits of the fraction.
            const DIGITS: u32 = $digits;
            const BIAS: $bits = $bias;
            /// 1.5 times the power of two from which on numbers are whole: adding it rounds to a whole number, which then is in its low
            /// bits in two's complement.
            const WHOLE: $float = 1.5 * (1u64 << DIGITS) as $float;
            /// ln 2 in two parts. The first has so few digits that its product with an exponent is exact.
            const LN2: [$float; 2] = [$ln2_high, $ln2_low];
            /// ln 2 for an exponent that is this many times as large: it is in the upper bits of 32.
            const UNIT: $float = (1u32 << (DIGITS - $half)) as $float;
            pub(super) const LN2_OF_UNIT: [$float; 2] = [LN2[0] / UNIT, LN2[1] / UNIT];

            /// The polynomial with these coefficients, the highest power first, at `x`.
            #[inline(always)]
            pub(in crate) fn polynomial<const N: usize>(x: $float, coefficients: [$float; N]) -> $float {
                let mut sum = coefficients[0];
                let mut power = 1;
                while power < N {
                    sum = sum.mul_add(x, coefficients[power]);
                    power += 1;
                }
                sum
            }

            /// `x` as `n ln 2 + r`: `n` in the low bits of the first, in two's complement, and `exp(r) - 1`.
            #[inline(always)]
            fn reduced(x: $float) -> ($bits, $float) {
                let shifted = x.mul_add(std::$float::consts::LOG2_E, WHOLE);
                let n = shifted - WHOLE;
                let r = n.mul_add(-LN2[0], x);
                let r = n.mul_add(-LN2[1], r);
                (shifted.to_bits(), (r * r).mul_add(exp_rest(r), r))
            }

            /// `(exp(r) - 1 - r) / r^2`, where `abs(r) <= ln(2) / 2`.
            #[inline(always)]
            fn exp_rest(r: $float) -> $float {
                polynomial(r, [$($exp),*])
            }

            /// `1 + m` times 2 to the power of the number in the low bits of `n`.
            #[inline(always)]
            fn scaled(m: $float, n: $bits) -> $float {
                // The power of two may be out of range where the result is not. So it is the product of a power that is normal, and of 2, or
                // less where the result is subnormal. Only the last product rounds.
                let power = ((n << DIGITS) as $signed).wrapping_add(((BIAS - 1) << DIGITS) as $signed);
                let first = power.max(2 << DIGITS);
                let second = power.wrapping_sub(first).wrapping_add(((BIAS + 1) << DIGITS) as $signed);
                (m + 1.0) * $float::from_bits(first as $bits) * $float::from_bits(second as $bits)
            }

            /// e to the power of `x`.
            #[inline(always)]
            pub(in crate) fn exp(x: $float) -> $float {
                // Beyond these the result is infinite, or rounds to 0. NaN stays.
                let x = if x > $highest { $highest } else { x };
                let x = if x < $lowest { $lowest } else { x };
                let (n, m) = reduced(x);
                scaled(m, n)
            }

            /// 2 to the power of `x`.
            #[inline(always)]
            pub(in crate) fn exp2(x: $float) -> $float {
                // As in `exp`.
                let x = if x > $highest2 { $highest2 } else { x };
                let x = if x < $lowest2 { $lowest2 } else { x };
                let shifted = x + WHOLE;
                let part = x - (shifted - WHOLE);
                // The exponent of e that stands for `part` is `r + lost`.
                let r = part * std::$float::consts::LN_2;
                let lost = part.mul_add($ln2_rest, part.mul_add(std::$float::consts::LN_2, -r));
                scaled(r + (r * r).mul_add(exp_rest(r), lost), shifted.to_bits())
            }

            /// The logarithm of `x` to some base: `usual` gives that of `(1 + f) 2^(n / UNIT)`, where `1 + f` is between the roots of 1/2 and 2.
            #[inline(always)]
            fn logarithm(x: $float, usual: impl Fn($float, $float) -> $float) -> $float {
                // From the root of 1/2 to that of 2.
                const ROOT: $bits = $root;
                const SCALE: $float = (1u64 << DIGITS) as $float;
                const INFINITE: $bits = $float::INFINITY.to_bits();
                let subnormal = x < $float::MIN_POSITIVE;
                let bits = select_unpredictable(subnormal, x * SCALE, x).to_bits();
                // The number is 2^n times a fraction around 1.
                let exponent = bits.wrapping_sub(ROOT) & !((1 << DIGITS) - 1);
                let fraction = $float::from_bits(bits.wrapping_sub(exponent));
                let exponent = exponent.wrapping_sub(select_unpredictable(subnormal, (DIGITS as $bits) << DIGITS, 0));
                // Converted from 32 bits, for which processors have an instruction.
                let n = (exponent as $signed >> $half) as i32 as $float;
                let result = usual(fraction - 1.0, n);
                // Infinity stays, and negative numbers and NaN are NaN. With plain conditions the compiler would branch, and compute the
                // polynomial once for subnormal numbers and once for others.
                let special = x.mul_add($float::INFINITY, $float::INFINITY);
                let special = select_unpredictable(x == 0.0, $float::NEG_INFINITY, special);
                let is_usual = x.to_bits().wrapping_sub(1) < INFINITE - 1;
                select_unpredictable(is_usual, result, special)
            }

            /// The natural logarithm of `x`.
            #[inline(always)]
            pub(in crate) fn log(x: $float) -> $float {
                logarithm(x, super::$log)
            }

            /// The logarithm of `x` to base 2.
            #[inline(always)]
            pub(in crate) fn log2(x: $float) -> $float {
                logarithm(x, log2_of)
            }

            #[inline(always)]
            fn log2_of(f: $float, n: $float) -> $float {
                let log = super::$log(f, 0.0);
                log.mul_add(std::$float::consts::LOG2_E, log.mul_add($log2_rest, n / UNIT))
            }

            /// The logarithm of `x` to base 10.
            #[inline(always)]
            pub(in crate) fn log10(x: $float) -> $float {
                logarithm(x, log10_of)
            }

            #[inline(always)]
            fn log10_of(f: $float, n: $float) -> $float {
                let (log, n) = (super::$log(f, 0.0), n / UNIT);
                let low = log.mul_add($log10_rest, n * $log10_2_rest);
                n.mul_add(std::$float::consts::LOG10_2, log.mul_add(std::$float::consts::LOG10_E, low))
            }

            /// The hyperbolic tangent of `x`.
            #[inline(always)]
            pub(in crate) fn tanh(x: $float) -> $float {
                let size = x.abs();
                // From here on it rounds to 1.
                let size = if size > $end { $end } else { size };
                let (n, m) = reduced(2.0 * size);
                let scale = $float::from_bits((n << DIGITS).wrapping_add(BIAS << DIGITS));
                let less = m.mul_add(scale, scale - 1.0);
                (less / (less + 2.0)).copysign(x)
            }

            /// 1 / (1 + exp(-x)).
            #[inline(always)]
            pub(in crate) fn sigmoid(x: $float) -> $float {
                let small = exp(-x.abs());
                let numerator = if x >= 0.0 { 1.0 } else { small };
                numerator / (1.0 + small)
            }
        }
    };
}

/// The logarithm of `(1 + f) 2^(n / UNIT)`, where `1 + f` is between the roots of 1/2 and 2: `f - f^2 / 2 + f^3 q(f)`.
#[inline(always)]
fn log_of_single(f: f32, n: f32) -> f32 {
    let q = single::polynomial(
        f,
        [
            0.069_211_85,
            -0.117_807_59,
            0.118_651_04,
            -0.123_855_41,
            0.142_200_24,
            -0.166_692_17,
            0.200_021_46,
            -0.249_999_86,
            0.333_333_12,
        ],
    );
    let z = f * f;
    let low = z.mul_add(q.mul_add(f, -0.5), n * single::LN2_OF_UNIT[1]);
    n.mul_add(single::LN2_OF_UNIT[0], f + low)
}

/// As [`log_of_single`], by a series in `f / (2 + f)`.
#[inline(always)]
fn log_of_double(f: f64, n: f64) -> f64 {
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = double::polynomial(w, [1.531_383_769_920_937_3e-1, 2.222_219_843_214_978_4e-1, 0.399_999_999_994_094_2]);
    let odd = double::polynomial(
        w,
        [1.479_819_860_511_658_6e-1, 1.818_357_216_161_805e-1, 0.285_714_287_436_623_9, 6.666_666_666_666_735e-1],
    );
    let series = w.mul_add(even, z * odd);
    let half = 0.5 * f * f;
    let low = n.mul_add(double::LN2_OF_UNIT[1], s * (half + series));
    n.mul_add(double::LN2_OF_UNIT[0], f - (half - low))
}

functions!(
    single, f32, u32, i32, digits 23, bias 127,
    exp from -104.0 to 89.0, exp2 from -151.0 to 129.0, tanh to 10.0,
    ln2 0.693_145_75 1.428_606_8e-6, root 0x3f35_04f3,
    ln2 rest -1.904_654_2e-9, log2 rest 1.925_963e-8, log10 rest -1.010_305e-8 of two -1.432_098_9e-8,
    exp [0.001_395_041 0.008_368_85 0.041_666_21 0.166_665_2 0.5],
    log by log_of_single half 0
);

functions!(
    double, f64, u64, i64, digits 52, bias 1023,
    exp from -746.0 to 710.0, exp2 from -1076.0 to 1025.0, tanh to 22.0,
    ln2 6.931_471_803_691_238e-1 1.908_214_929_270_587_7e-10, root 0x3fe6_a09e_667f_3bcd,
    ln2 rest 2.319_046_813_846_299_6e-17, log2 rest 2.035_527_374_093_103_3e-17,
    log10 rest 1.098_319_650_216_765e-17 of two -2.803_728_127_785_170_4e-18,
    exp [
        2.511_765_219_955_136e-8 2.763_091_113_399_346e-7 2.755_721_705_781_380_5e-6 2.480_149_111_741_806_3e-5
        1.984_126_991_638_599_3e-4 1.388_888_894_569_975_2e-3 8.333_333_333_307_766e-3 4.166_666_666_652_142_6e-2
        0.166_666_666_666_667 0.500_000_000_000_001_2
    ],
    log by log_of_double half 32
);

#[cfg(test)]
#[path = "math_tests.rs"]
mod tests;

//! The errors of the functions in units of the last place, and their special values.

use super::{double, single};

/// A sum of two `f64`, the second below half a unit of the last place of the first: about 106 bits (Dekker, 1971).
#[derive(Copy, Clone)]
struct Pair(f64, f64);

impl Pair {
    fn of(x: f64) -> Pair {
        Pair(x, 0.0)
    }

    fn sum(x: f64, y: f64) -> Pair {
        let sum = x + y;
        let back = sum - x;
        Pair(sum, (x - (sum - back)) + (y - back))
    }

    fn add(self, other: Pair) -> Pair {
        let Pair(high, low) = Pair::sum(self.0, other.0);
        Pair::sum(high, low + self.1 + other.1)
    }

    fn mul(self, other: Pair) -> Pair {
        let high = self.0 * other.0;
        let low = self.0.mul_add(other.0, -high) + (self.0 * other.1 + self.1 * other.0);
        Pair::sum(high, low)
    }

    fn div(self, other: Pair) -> Pair {
        let first = self.0 / other.0;
        let left = self.add(other.mul(Pair::of(-first)));
        let second = left.0 / other.0;
        let left = left.add(other.mul(Pair::of(-second)));
        Pair::sum(first, second).add(Pair::of(left.0 / other.0))
    }

    fn scaled(self, by: f64) -> Pair {
        Pair(self.0 * by, self.1 * by)
    }

    /// e to this power less 1, for a number of at most 40 in size, and the power of two that both are to be multiplied with.
    fn exp(self) -> (Pair, i32) {
        const LN2: Pair = Pair(std::f64::consts::LN_2, 2.319_046_813_846_299_6e-17);
        let n = (self.0 / LN2.0).round();
        let r = self.add(LN2.mul(Pair::of(-n))).scaled(1.0 / 256.0);
        let mut sum = Pair::of(0.0);
        for divisor in (1..=11).rev() {
            sum = sum.add(Pair::of(1.0)).mul(r).div(Pair::of(f64::from(divisor)));
        }
        // (1 + s)^2 - 1 = s^2 + 2 s, eight times.
        for _ in 0..8 {
            sum = sum.mul(sum).add(sum.scaled(2.0));
        }
        (sum.add(Pair::of(1.0)), n as i32)
    }
}

/// 2 to the power of `n`, also where it is subnormal.
fn power(n: i32) -> f64 {
    2f64.powi(n / 2) * 2f64.powi(n - n / 2)
}

/// The distance from `found` to `exact` in units of the last place of `exact` in a format with these digits and least exponent.
fn ulps(found: f64, exact: Pair, digits: i32, least: i32) -> f64 {
    let exponent = ((exact.0.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    let scale = exponent - digits;
    let difference = (found - exact.0) - exact.1;
    (difference.abs() * power(-scale / 2)) * power(-scale + scale / 2)
}

/// The largest error in ulps over numbers of every sign and exponent, spread evenly over the bits; infinite if a result that should be
/// zero, infinite or NaN is not.
fn worst_single(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
    let mut worst: f64 = 0.0;
    for bits in (0..=u32::MAX).step_by(1499) {
        let x = f32::from_bits(bits);
        let (found, exact) = (f(x), exact(f64::from(x)));
        let near = exact as f32;
        if near.is_nan() || near.is_infinite() {
            // A result within an ulp of the end of the range may be either.
            let good = found.is_nan() && near.is_nan() || found == near;
            assert!(good || found.abs() == f32::MAX, "{x:e}: {found:e}, expected {near:e}");
        } else {
            assert!(found.is_finite() || near.abs() == f32::MAX, "{x:e}: {found:e}, expected {near:e}");
            if found.is_finite() {
                worst = worst.max(ulps(f64::from(found), Pair::of(exact), 23, -126));
            }
        }
    }
    worst
}

#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_of_f32_are_bounded() {
    let errors = [
        worst_single(single::exp, f64::exp),
        worst_single(single::log, f64::ln),
        worst_single(single::tanh, f64::tanh),
        worst_single(single::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ];
    println!("exp, log, tanh, sigmoid of f32: {errors:.3?}");
    assert!(errors[0] <= 1.0 && errors[1] <= 1.0 && errors[2] <= 3.0 && errors[3] <= 3.0, "{errors:?}");
}

/// Numbers with random bits in the fraction and every exponent up to `most`.
fn numbers(most: i32, signed: bool) -> impl Iterator<Item = f64> {
    let mut state = 7u64;
    (0..1_000_000).map(move |i| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = most - (i % (if i % 2 == 0 { 20 } else { 1000 }));
        let x = f64::from_bits(1023 << 52 | state >> 12) * power(exponent);
        if signed && state & 1024 == 0 { -x } else { x }
    })
}

/// The error of a result in ulps, where `exact` is to be multiplied with 2 to the power of `scale`.
fn double_error(found: f64, exact: Pair, scale: i32) -> f64 {
    // Normal results are compared without the power of two; subnormal ones as they are.
    if scale > -1000 && scale < 1000 {
        ulps(found * power(-scale), exact, 52, -1022)
    } else {
        ulps(found, Pair(exact.0 * power(scale), exact.1 * power(scale)), 52, -1022)
    }
}

fn worst_double(numbers: impl Iterator<Item = f64>, f: impl Fn(f64) -> f64, exact: impl Fn(f64) -> (Pair, i32)) -> f64 {
    numbers.fold(0.0, |worst, x| {
        let (exact, scale) = exact(x);
        let found = f(x);
        let (error, beyond) = (double_error(found, exact, scale), exact.0 * power(scale));
        // A result beyond the range of the type is not judged here.
        if beyond.is_infinite() {
            return worst;
        }
        assert!(error.is_finite(), "{x:e}: {found:e}");
        worst.max(error)
    })
}

/// The natural logarithm of a positive number.
fn exact_log(x: f64) -> Pair {
    let y = x.ln();
    // One step of Newton's method: y + (x exp(-y) - 1), with the second term of the series.
    let (e, n) = Pair::of(-y).exp();
    let part = e.mul(Pair::of(x * power(n))).add(Pair::of(-1.0));
    Pair::of(y).add(part).add(part.mul(part).scaled(-0.5))
}

/// `pow` is that of the C library; this bound is what the documentation promises of it.
#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_of_powers_are_bounded() {
    // Exponents that keep the power in the range of the type.
    let pairs = |range: f64| {
        let bases = numbers(8, false).zip(numbers(1, true));
        bases.map(move |(x, part)| (x, part / x.ln() * range)).filter(|(_, y)| y.is_finite() && *y != 0.0)
    };
    let single = pairs(40.0).fold(0.0, |worst: f64, (x, y)| {
        let (x, y) = (x as f32, y as f32);
        let exact = f64::from(x).powf(f64::from(y));
        let is_normal = (exact as f32).is_normal();
        let found = x.powf(y);
        assert!(found.is_finite() || !is_normal, "{x:e} to {y:e}: {found:e}");
        if is_normal { worst.max(ulps(f64::from(found), Pair::of(exact), 23, -126)) } else { worst }
    });
    let double = pairs(300.0).step_by(2).fold(0.0, |worst: f64, (x, y)| {
        let (exact, n) = exact_log(x).mul(Pair::of(y)).exp();
        let found = x.powf(y);
        let error = double_error(found, exact, n);
        if (exact.0 * power(n)).is_infinite() {
            return worst;
        }
        assert!(error.is_finite(), "{x:e} to {y:e}: {found:e}");
        worst.max(error)
    });
    println!("pow of f32, f64: {single:.3} {double:.3}");
    assert!(single <= 1.0 && double <= 1.0, "{single} {double}");
}

#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_of_f64_are_bounded() {
    let exact_tanh = |x: f64| {
        if x.abs() < 1e-3 {
            let z = Pair::of(x).mul(Pair::of(x));
            let third = Pair::of(-1.0).div(Pair::of(3.0));
            let series = Pair::of(2.0 / 15.0).add(z.scaled(-17.0 / 315.0)).mul(z).add(third).mul(z).add(Pair::of(1.0));
            return (series.mul(Pair::of(x)), 0);
        }
        let (e, n) = Pair::of(2.0 * x).exp();
        let e = e.scaled(power(n));
        (e.add(Pair::of(-1.0)).div(e.add(Pair::of(1.0))), 0)
    };
    let exact_sigmoid = |x: f64| {
        let (e, n) = Pair::of(-x.abs()).exp();
        let e = e.scaled(power(n));
        let one = Pair::of(1.0);
        (if x < 0.0 { e } else { one }.div(e.add(one)), 0)
    };
    let errors = [
        worst_double(numbers(9, true).filter(|x| x.abs() < 708.0), double::exp, |x| Pair::of(x).exp()),
        worst_double(numbers(300, false).chain(numbers(0, false)), double::log, |x| (exact_log(x), 0)),
        worst_double(numbers(4, true), double::tanh, exact_tanh),
        worst_double(numbers(9, true).filter(|x| x.abs() < 708.0), double::sigmoid, exact_sigmoid),
    ];
    println!("exp, log, tanh, sigmoid of f64: {errors:.3?}");
    assert!(errors[0] <= 1.0 && errors[1] <= 1.0 && errors[2] <= 3.0 && errors[3] <= 3.0, "{errors:?}");
}

#[test]
fn special_values_are_those_of_the_standard_library() {
    macro_rules! check {
        ($module:ident, $float:ident) => {
            let (inf, nan, tiny) = ($float::INFINITY, $float::NAN, $float::from_bits(1));
            let numbers = [0.0, -0.0, inf, -inf, nan, -nan, tiny, -tiny, $float::MAX, $float::MIN, 1.0, -1.0];
            let sigmoid = |x: $float| 1.0 / (1.0 + (-x).exp());
            for x in numbers {
                let found = [$module::exp(x), $module::log(x), $module::tanh(x), $module::sigmoid(x)];
                let expected = [x.exp(), x.ln(), x.tanh(), sigmoid(x)];
                for (found, expected) in found.into_iter().zip(expected) {
                    let near = (found - expected).abs() <= expected.abs() * 4.0 * $float::EPSILON;
                    let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
                    assert!(same || (near && expected != 0.0), "{found:e} for {x:e}, expected {expected:e}");
                }
            }
        };
    }
    check!(single, f32);
    check!(double, f64);
    // The last results that are finite, and not zero.
    assert!(single::exp(88.722_83).is_finite() && single::exp(88.722_85).is_infinite());
    assert!(single::exp(-103.972) > 0.0 && single::exp(-103.973) == 0.0);
    assert!(double::exp(709.782_712_893_383_9).is_finite() && double::exp(709.782_712_893_384_1).is_infinite());
    assert!(double::exp(-745.133).is_normal() || double::exp(-745.133) > 0.0);
    assert_eq!(double::exp(-745.134), 0.0);
}

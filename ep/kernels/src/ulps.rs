//! For tests: errors in units of the last place, and numbers of twice the digits of `f64` to measure them with.

/// A sum of two `f64`, the second below half a unit of the last place of the first: about 106 bits (Dekker, 1971).
#[derive(Copy, Clone)]
pub(super) struct Pair(pub(super) f64, pub(super) f64);

impl Pair {
    pub(super) fn of(x: f64) -> Pair {
        Pair(x, 0.0)
    }

    fn sum(x: f64, y: f64) -> Pair {
        let sum = x + y;
        let back = sum - x;
        Pair(sum, (x - (sum - back)) + (y - back))
    }

    pub(super) fn add(self, other: Pair) -> Pair {
        let Pair(high, low) = Pair::sum(self.0, other.0);
        Pair::sum(high, low + self.1 + other.1)
    }

    pub(super) fn mul(self, other: Pair) -> Pair {
        let high = self.0 * other.0;
        let low = self.0.mul_add(other.0, -high) + (self.0 * other.1 + self.1 * other.0);
        Pair::sum(high, low)
    }

    pub(super) fn div(self, other: Pair) -> Pair {
        let first = self.0 / other.0;
        let left = self.add(other.mul(Pair::of(-first)));
        let second = left.0 / other.0;
        let left = left.add(other.mul(Pair::of(-second)));
        Pair::sum(first, second).add(Pair::of(left.0 / other.0))
    }

    pub(super) fn scaled(self, by: f64) -> Pair {
        Pair(self.0 * by, self.1 * by)
    }

    /// e to this power, for a number of at most 40 in size, and the power of two that it is to be multiplied with.
    pub(super) fn exp(self) -> (Pair, i32) {
        let (less, n) = self.exp_less_1();
        (less.add(Pair::of(1.0)), n)
    }

    /// As [`exp`](Pair::exp), less 1 before it is multiplied.
    pub(super) fn exp_less_1(self) -> (Pair, i32) {
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
        (sum, n as i32)
    }

    /// The natural logarithm.
    pub(super) fn log(self) -> Pair {
        let y = self.0.ln();
        // One step of Newton's method: y + (x exp(-y) - 1), with the second term of the series.
        let (m, n) = Pair::of(-y).exp_less_1();
        let less = |x: Pair| x.add(Pair::of(-1.0));
        let part = if n == 0 {
            // (1 + f) (1 + m) - 1, which keeps its digits where both are small.
            let f = less(self);
            f.add(m).add(f.mul(m))
        } else {
            less(m.add(Pair::of(1.0)).mul(self.scaled(power(n))))
        };
        Pair::of(y).add(part).add(part.mul(part).scaled(-0.5))
    }

    pub(super) fn sqrt(self) -> Pair {
        if self.0 == 0.0 {
            return self;
        }
        let near = self.0.sqrt();
        let left = self.add(Pair::of(near).mul(Pair::of(-near)));
        Pair::sum(near, left.0 / (2.0 * near))
    }

    /// Sine and cosine, for a number of at most 2^20 in size.
    pub(super) fn sin_cos(self) -> (Pair, Pair) {
        // pi / 2 in three parts (Hida, Li and Bailey, "QD").
        const HALF_PI: [f64; 3] =
            [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_8e-33];
        let n = (self.0 / HALF_PI[0]).round();
        let r = HALF_PI.iter().fold(self, |r, &part| r.add(Pair::of(part).mul(Pair::of(-n))));
        let minus_square = r.mul(r).scaled(-1.0);
        let (mut sin, mut cos) = (Pair::of(1.0), Pair::of(1.0));
        for even in (2..=28).rev().step_by(2).map(f64::from) {
            sin = sin.mul(minus_square).div(Pair::of(even * (even + 1.0))).add(Pair::of(1.0));
            cos = cos.mul(minus_square).div(Pair::of(even * (even - 1.0))).add(Pair::of(1.0));
        }
        sin = sin.mul(r);
        match n.rem_euclid(4.0) as i32 {
            0 => (sin, cos),
            1 => (cos, sin.scaled(-1.0)),
            2 => (sin.scaled(-1.0), cos.scaled(-1.0)),
            _ => (cos.scaled(-1.0), sin),
        }
    }

    /// The angle of the point (x, y), to which the angle `near` is near.
    pub(super) fn angle(x: Pair, y: Pair, near: f64) -> Pair {
        let (sin, cos) = Pair::of(near).sin_cos();
        let across = y.mul(cos).add(x.mul(sin).scaled(-1.0));
        Pair::of(near).add(across.div(x.mul(cos).add(y.mul(sin))))
    }
}

/// 2 to the power of `n`, also where it is subnormal.
pub(super) fn power(n: i32) -> f64 {
    2f64.powi(n / 2) * 2f64.powi(n - n / 2)
}

/// The distance from `found` to `exact` in units of the last place of `exact` in a format with these digits and least exponent.
pub(super) fn ulps(found: f64, exact: Pair, digits: i32, least: i32) -> f64 {
    let exponent = ((exact.0.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    let scale = exponent - digits;
    let difference = (found - exact.0) - exact.1;
    (difference.abs() * power(-scale / 2)) * power(-scale + scale / 2)
}

#[path = "../../../tests/src/support/cases.rs"]
mod cases;
use cases::cases;

/// The largest error in ulps over numbers of every sign and exponent, spread evenly over the bits; infinite if a result that should be
/// zero, infinite or NaN is not.
pub(super) fn worst_single(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
    let mut worst: f64 = 0.0;
    for bits in (0..=u32::MAX).step_by((14_990 / cases(1) as usize) | 1) {
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

/// Numbers with random bits in the fraction and every exponent up to `most`.
pub(super) fn numbers(most: i32, signed: bool) -> impl Iterator<Item = f64> {
    let mut state = 7u64;
    (0..cases(100_000) as i32).map(move |i| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = most - (i % (if i % 2 == 0 { 20 } else { 1000 }));
        let x = f64::from_bits(1023 << 52 | state >> 12) * power(exponent);
        if signed && state & 1024 == 0 { -x } else { x }
    })
}

/// The error of a result in ulps, where `exact` is to be multiplied with 2 to the power of `scale`.
pub(super) fn double_error(found: f64, exact: Pair, scale: i32) -> f64 {
    // Normal results are compared without the power of two; subnormal ones as they are.
    if scale > -1000 && scale < 1000 {
        ulps(found * power(-scale), exact, 52, -1022)
    } else {
        ulps(found, Pair(exact.0 * power(scale), exact.1 * power(scale)), 52, -1022)
    }
}

pub(super) fn worst_double(
    numbers: impl Iterator<Item = f64>,
    f: impl Fn(f64) -> f64,
    exact: impl Fn(f64) -> (Pair, i32),
) -> f64 {
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

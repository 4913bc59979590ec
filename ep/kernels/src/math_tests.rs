//! The errors of the functions in units of the last place, and their special values.

use super::{double, single};
use crate::ulps::{Pair, double_error, numbers, power, ulps, worst_double, worst_single};

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

#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_to_other_bases_are_bounded() {
    let single = [
        worst_single(single::exp2, f64::exp2),
        worst_single(single::log2, f64::log2),
        worst_single(single::log10, f64::log10),
    ];
    let log_of = |base: f64| move |x: f64| (Pair::of(x).log().div(Pair::of(base).log()), 0);
    let exact_exp2 = |x: f64| {
        let n = x.round();
        let (e, m) = Pair::of(2.0).log().mul(Pair::of(x - n)).exp();
        (e, m + n as i32)
    };
    let around_1 = || numbers(-1, true).step_by(7).map(|x| 1.0 + x);
    let positive = || numbers(300, false).chain(numbers(0, false)).step_by(3).chain(around_1());
    let double = [
        worst_double(numbers(9, true).step_by(3).filter(|x| x.abs() < 1022.0), double::exp2, exact_exp2),
        worst_double(positive(), double::log2, log_of(2.0)),
        worst_double(positive(), double::log10, log_of(10.0)),
    ];
    println!("exp2, log2, log10 of f32: {single:.3?}, of f64: {double:.3?}");
    for errors in [single, double] {
        assert!(errors[0] <= 1.0 && errors[1] <= 2.0 && errors[2] <= 2.0, "{errors:?}");
    }
}

/// Whole powers of the base, and the logarithms of these, are exact.
#[test]
fn powers_of_the_base_are_exact() {
    for n in -149..128 {
        let x = power(n) as f32;
        assert_eq!((single::exp2(n as f32), single::log2(x)), (x, n as f32));
    }
    for n in -1074..1024 {
        assert_eq!((double::exp2(n.into()), double::log2(power(n))), (power(n), f64::from(n)));
    }
    for n in 0..23 {
        assert_eq!(double::log10(10f64.powi(n)), f64::from(n));
    }
    for n in 0..11 {
        assert_eq!(single::log10(10f32.powi(n)), n as f32);
    }
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
        let (exact, n) = Pair::of(x).log().mul(Pair::of(y)).exp();
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
        worst_double(numbers(300, false).chain(numbers(0, false)), double::log, |x| (Pair::of(x).log(), 0)),
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
                let (found, expected) = (found.into_iter(), expected.into_iter());
                let found = found.chain([$module::exp2(x), $module::log2(x), $module::log10(x)]);
                let expected = expected.chain([x.exp2(), x.log2(), x.log10()]);
                for (found, expected) in found.zip(expected) {
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
    assert!(single::exp2(127.999_99).is_finite() && single::exp2(128.0).is_infinite());
    assert!(single::exp2(-149.999_98) > 0.0 && single::exp2(-150.0) == 0.0);
    assert!(double::exp2(1_023.999_999_999_999_9).is_finite() && double::exp2(1_024.0).is_infinite());
    assert!(double::exp2(-1_074.999_999_999_999_8) > 0.0 && double::exp2(-1_075.0) == 0.0);
}

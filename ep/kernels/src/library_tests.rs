//! The errors of the functions in units of the last place, and their special values.

use super::{double, single};
use crate::ulps::{Pair, double_error, numbers, power, ulps, worst_double, worst_single};

const ONE: Pair = Pair(1.0, 0.0);

/// The largest errors that the documentation of the ops promises, in the order of the table of this module.
const BOUNDS: [f64; 10] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0];

#[track_caller]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn check(what: &str, errors: [f64; 10]) {
    println!("sin, cos, tan, asin, acos, atan, sinh, cosh, log1p, expm1 of {what}: {errors:.3?}");
    assert!(errors.iter().zip(BOUNDS).all(|(error, bound)| *error <= bound), "{errors:?}");
}

#[test]
fn errors_of_f32_are_bounded() {
    let errors = [
        worst_single(single::sin, f64::sin),
        worst_single(single::cos, f64::cos),
        worst_single(single::tan, f64::tan),
        worst_single(single::asin, f64::asin),
        worst_single(single::acos, f64::acos),
        worst_single(single::atan, f64::atan),
        worst_single(single::sinh, f64::sinh),
        worst_single(single::cosh, f64::cosh),
        worst_single(single::log1p, f64::ln_1p),
        worst_single(single::expm1, f64::exp_m1),
    ];
    check("f32", errors);
}

/// `exp(x) - 1`, to be multiplied with 2 to the power of the second, which is not 0 for large numbers alone.
fn exp_less_1(x: f64) -> (Pair, i32) {
    let (less, n) = Pair::of(x).exp_less_1();
    match n {
        0 => (less, 0),
        // 1 is below half a unit of the last of 106 bits.
        110.. => (less.add(ONE), n),
        _ => (less.scaled(power(n)).add(ONE.scaled(power(n)).add(Pair::of(-1.0))), 0),
    }
}

/// Half the sum, or the difference, of `exp(x)` and its reciprocal.
fn hyperbolic(x: f64, sign: f64) -> (Pair, i32) {
    let size = x.abs();
    let (less, n) = exp_less_1(size);
    let half = if n > 0 {
        less.scaled(0.5)
    } else if sign < 0.0 {
        // (e - 1 / e) / 2 = (l + l / (l + 1)) / 2, where l = e - 1.
        less.add(less.div(less.add(ONE))).scaled(0.5)
    } else {
        less.add(ONE).add(ONE.div(less.add(ONE))).scaled(0.5)
    };
    (if sign < 0.0 && x < 0.0 { half.scaled(-1.0) } else { half }, n)
}

fn log_of_1_and(x: f64) -> (Pair, i32) {
    (ONE.add(Pair::of(x)).log(), 0)
}

#[test]
fn errors_of_f64_are_bounded() {
    // Smaller numbers would lose the second parts of sums; they are tested below.
    let of_size = |most: i32| numbers(most, true).step_by(5).filter(|x| x.abs() > 1e-140);
    let below_1 = || of_size(-1).chain(of_size(-1).map(|x| if x > 0.0 { 1.0 - x } else { -1.0 - x }));
    let sin_cos = |x: f64| Pair::of(x).sin_cos();
    // The side of a right triangle beside `x`, where the longest is 1.
    let other = |x: f64| ONE.add(Pair::of(-x)).mul(ONE.add(Pair::of(x))).sqrt();
    let below_710 = || of_size(9).filter(|x| x.abs() < 709.0);
    let errors = [
        worst_double(of_size(18), double::sin, |x| (sin_cos(x).0, 0)),
        worst_double(of_size(18), double::cos, |x| (sin_cos(x).1, 0)),
        worst_double(of_size(18), double::tan, |x| (sin_cos(x).0.div(sin_cos(x).1), 0)),
        worst_double(below_1(), double::asin, |x| (Pair::angle(other(x), Pair::of(x), x.asin()), 0)),
        worst_double(below_1(), double::acos, |x| (Pair::angle(Pair::of(x), other(x), x.acos()), 0)),
        worst_double(of_size(60), double::atan, |x| (Pair::angle(ONE, Pair::of(x), x.atan()), 0)),
        worst_double(below_710(), double::sinh, |x| hyperbolic(x, -1.0)),
        worst_double(below_710(), double::cosh, |x| hyperbolic(x, 1.0)),
        worst_double(of_size(200).filter(|x| *x > -1.0), double::log1p, log_of_1_and),
        worst_double(below_710(), double::expm1, exp_less_1),
    ];
    check("f64", errors);
}

/// Beside the C library, which is within an ulp: arguments whose multiple of pi / 2 needs hundreds of bits of pi.
#[test]
fn angles_may_be_as_large_as_numbers_are() {
    assert!((double::sin(1e22) - -0.852_200_849_767_188_8).abs() < 1e-15);
    let numbers = numbers(1000, true).step_by(9).filter(|x| x.abs() > 1e5);
    for x in numbers {
        for (found, near) in [(double::sin(x), x.sin()), (double::cos(x), x.cos()), (double::tan(x), x.tan())] {
            assert!((found - near).abs() <= 2.0 * f64::EPSILON * near.abs(), "{x:e}: {found:e}, not {near:e}");
        }
    }
}

/// Points in all directions, and with coordinates of every size.
#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_of_atan2_are_bounded() {
    let points = || numbers(2, true).step_by(5).zip(numbers(1, true).step_by(5).skip(7));
    let points = || points().filter(|(y, x)| y.abs() > 1e-140 && x.abs() > 1e-140 && (y / x).abs() > 1e-140);
    let single = points().fold(0.0, |worst: f64, (y, x)| {
        let (y, x) = (y as f32, x as f32);
        worst.max(ulps(f64::from(single::atan2(y, x)), Pair::of(f64::from(y).atan2(x.into())), 23, -126))
    });
    let double = points().fold(0.0, |worst: f64, (y, x)| {
        let exact = Pair::angle(Pair::of(x), Pair::of(y), y.atan2(x));
        worst.max(double_error(double::atan2(y, x), exact, 0))
    });
    println!("atan2 of f32, f64: {single:.3} {double:.3}");
    assert!(single <= 1.0 && double <= 1.0, "{single} {double}");
}

#[test]
fn special_values() {
    macro_rules! check {
        ($module:ident, $float:ident) => {{
            let (inf, tiny, pi) = ($float::INFINITY, $float::from_bits(1), std::$float::consts::PI);
            // Multiples of pi are the nearest number, or one beside it.
            let same = |found: &[$float], expected: &[$float]| {
                let near = |(x, y): (&$float, &$float)| x == y || (x - y).abs() <= $float::EPSILON * y.abs();
                assert!(found.iter().zip(expected).all(near), "{found:?}, not {expected:?}");
            };
            for x in [0.0, -0.0, tiny, -tiny] {
                use $module::{asin, atan, expm1, log1p, sin, sinh, tan};
                for f in [sin, tan, asin, atan, sinh, log1p, expm1] {
                    assert_eq!(f(x).to_bits(), x.to_bits());
                }
                same(&[$module::cos(x), $module::cosh(x), $module::acos(x)], &[1.0, 1.0, pi / 2.0]);
            }
            for x in [inf, -inf] {
                assert!([$module::sin(x), $module::cos(x), $module::tan(x)].iter().all(|it| it.is_nan()));
                assert!([$module::asin(x), $module::acos(x)].iter().all(|it| it.is_nan()));
                same(&[$module::atan(x), $module::sinh(x), $module::cosh(x)], &[x.signum() * pi / 2.0, x, inf]);
            }
            assert_eq!([$module::log1p(inf), $module::expm1(inf), $module::expm1(-inf)], [inf, inf, -1.0]);
            assert_eq!($module::log1p(-1.0), -inf);
            assert!($module::log1p(-1.5).is_nan() && $module::asin(1.000_001).is_nan());
            same(&[$module::asin(1.0), $module::acos(-1.0), $module::acos(1.0)], &[pi / 2.0, pi, 0.0]);
            let atan2 = |y: $float, x: $float| $module::atan2(y, x);
            same(&[atan2(0.0, 1.0), atan2(0.0, -1.0), atan2(-0.0, -1.0), atan2(1.0, 0.0)], &[0.0, pi, -pi, pi / 2.0]);
            same(&[atan2(0.0, 0.0), atan2(0.0, -0.0), atan2(-0.0, -0.0)], &[0.0, pi, -pi]);
            same(&[atan2(inf, inf), atan2(-inf, 1.0), atan2(1.0, inf)], &[pi / 4.0, -pi / 2.0, 0.0]);
            assert!(atan2(-0.0, 1.0).is_sign_negative() && atan2(-0.0, 0.0).is_sign_negative());
            assert!(atan2($float::NAN, 1.0).is_nan() && atan2(1.0, $float::NAN).is_nan());
            use $module::{acos, asin, atan, cos, cosh, expm1, log1p, sin, sinh, tan};
            for f in [sin, cos, tan, asin, acos, atan, sinh, cosh, log1p, expm1] {
                assert!(f($float::NAN).is_nan());
            }
        }};
    }
    check!(single, f32);
    check!(double, f64);
}

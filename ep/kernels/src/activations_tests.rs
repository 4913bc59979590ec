//! The errors of the functions in units of the last place, and their special values.

use super::{double, single};
use crate::functions::Functions;
use crate::ulps::{Pair, numbers, power, worst_double, worst_single};

const ONE: Pair = Pair(1.0, 0.0);
/// 1 / sqrt(pi).
const ROOT_OF_PI: Pair = Pair(0.564_189_583_547_756_3, 7.667_729_806_582_94e-18);
/// 1 / sqrt(2).
const ROOT_OF_HALF: Pair = Pair(std::f64::consts::FRAC_1_SQRT_2, -4.833_646_656_726_457e-17);

fn negative(x: Pair) -> Pair {
    x.scaled(-1.0)
}

/// The error function of a number from 0 to 2, by a series whose terms are all positive.
fn exact_erf(t: Pair) -> Pair {
    let square = t.mul(t);
    let mut sum = Pair::of(0.0);
    for n in (1..8 + (35.0 * t.0) as i32).rev() {
        sum = sum.add(ONE).mul(square).scaled(2.0).div(Pair::of(f64::from(2 * n + 1)));
    }
    let (e, n) = negative(square).exp();
    sum.add(ONE).mul(t).scaled(2.0).mul(ROOT_OF_PI).mul(e).scaled(power(n))
}

/// `erfc(t)` of a number that is not negative, to be multiplied with 2 to the power of the second: beyond 1.5 by Laplace's continued fraction.
fn exact_erfc(t: Pair) -> (Pair, i32) {
    if t.0 < 1.5 {
        return (ONE.add(negative(exact_erf(t))), 0);
    }
    let terms = (240.0 / (t.0 * t.0)) as i32 + 10;
    let mut fraction = t;
    for k in (1..=terms).rev() {
        fraction = t.add(Pair::of(0.5 * f64::from(k)).div(fraction));
    }
    let (e, n) = negative(t.mul(t)).exp();
    (e.mul(ROOT_OF_PI).div(fraction), n)
}

fn erf(x: f64) -> (Pair, i32) {
    let t = Pair::of(x.abs());
    let size = match t.0 {
        t if t >= 7.0 => ONE,
        t0 if t0 < 1.5 => exact_erf(t),
        _ => {
            let (rest, n) = exact_erfc(t);
            ONE.add(negative(rest.scaled(power(n))))
        }
    };
    (size.scaled(1f64.copysign(x)), 0)
}

/// The same product of a number and a power of two, so that the power alone does not underflow.
fn normal(value: Pair, n: i32) -> (Pair, i32) {
    if n < -1040 { (value.scaled(power(n + 1040)), -1040) } else { (value, n) }
}

fn gelu(x: f64) -> (Pair, i32) {
    if x.abs() > 40.0 {
        return (Pair::of(x.max(0.0)), 0);
    }
    let (tail, n) = exact_erfc(Pair::of(x.abs()).mul(ROOT_OF_HALF));
    match x < 0.0 {
        true => normal(tail.mul(Pair::of(x)).scaled(0.5), n),
        false => (Pair::of(2.0).add(negative(tail.scaled(power(n)))).mul(Pair::of(x)).scaled(0.5), 0),
    }
}

/// `x / (1 + exp(-v))`.
fn weighted(x: f64, v: Pair) -> (Pair, i32) {
    if v.0.abs() > 760.0 {
        return (Pair::of(x.max(0.0)), 0);
    }
    let (e, n) = if v.0 < 0.0 { v } else { negative(v) }.exp();
    let sum = ONE.add(e.scaled(power(n)));
    if x < 0.0 { normal(e.mul(Pair::of(x)).div(sum), n) } else { (Pair::of(x).div(sum), 0) }
}

fn silu(x: f64) -> (Pair, i32) {
    weighted(x, Pair::of(x))
}

fn gelu_tanh(x: f64) -> (Pair, i32) {
    if x.abs() > 100.0 {
        return (Pair::of(x.max(0.0)), 0);
    }
    let a = Pair(0.797_884_560_802_865_4, -4.984_654_404_555_46e-17);
    let b = a.mul(Pair(0.044_715, 2.196_021_142_708_559_5e-18));
    let square = Pair::of(x).mul(Pair::of(x));
    weighted(x, a.add(b.mul(square)).mul(Pair::of(x)).scaled(2.0))
}

/// A result as one `f64`.
fn whole(f: impl Fn(f64) -> (Pair, i32)) -> impl Fn(f64) -> f64 {
    move |x| match x {
        x if x.is_nan() => x,
        x if x == f64::INFINITY => x,
        x => {
            let (value, n) = f(x.max(-1e300));
            value.0 * power(n)
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_of_f32_are_bounded() {
    let whole_erf = whole(erf);
    let errors = [
        worst_single(single::erf, |x| if x == f64::INFINITY { 1.0 } else { whole_erf(x) }),
        worst_single(single::gelu, whole(gelu)),
        worst_single(single::gelu_tanh, whole(gelu_tanh)),
        worst_single(single::silu, whole(silu)),
    ];
    println!("erf, gelu, gelu_tanh, silu of f32: {errors:.3?}");
    assert!(errors[0] <= 2.0 && errors[1] <= 7.0 && errors[2] <= 5.0 && errors[3] <= 5.0, "{errors:?}");
}

#[test]
#[allow(clippy::print_stdout, reason = "figures for the decision that states them")]
fn errors_of_f64_are_bounded() {
    // Half of these are below 64 and above 2^-14, where the functions are neither linear nor constant.
    let drawn = || numbers(5, true).step_by(3);
    let errors = [
        worst_double(drawn(), double::erf, erf),
        worst_double(drawn(), double::gelu, gelu),
        worst_double(drawn(), double::gelu_tanh, gelu_tanh),
        worst_double(numbers(9, true).step_by(3), double::silu, silu),
    ];
    println!("erf, gelu, gelu_tanh, silu of f64: {errors:.3?}");
    assert!(errors[0] <= 2.0 && errors[1] <= 7.0 && errors[2] <= 5.0 && errors[3] <= 5.0, "{errors:?}");
}

/// Each of its two operations is off by half a unit, and the first error is doubled at most.
#[test]
fn the_error_of_a_reciprocal_root_is_bounded() {
    let error = worst_single(Functions::rsqrt, |x| 1.0 / x.sqrt());
    assert!(error <= 1.5, "{error}");
}

#[test]
fn values_that_are_special() {
    macro_rules! check {
        ($module:ident, $float:ident) => {
            let (inf, tiny) = ($float::INFINITY, $float::from_bits(1));
            for (x, found) in [
                (0.0, 0.0),
                (-0.0, 0.0),
                (inf, 1.0),
                (-inf, -1.0),
                ($float::MAX, 1.0),
                (1e-30, 1.128_379_167_095_512_6e-30),
            ] {
                assert!(
                    ($module::erf(x) - found as $float).abs() <= (found as $float).abs() * $float::EPSILON,
                    "erf of {x:e}"
                );
            }
            assert!($module::erf(-0.0).is_sign_negative() && $module::erf(tiny) == tiny);
            for f in [$module::gelu, $module::gelu_tanh, $module::silu] {
                assert_eq!(
                    [f(0.0), f(-0.0), f(inf), f(-inf), f($float::MAX), f($float::MIN)],
                    [0.0, 0.0, inf, 0.0, $float::MAX, 0.0]
                );
                assert!(f($float::NAN).is_nan() && f(-$float::NAN).is_nan());
            }
            assert!($module::erf($float::NAN).is_nan());
        };
    }
    check!(single, f32);
    check!(double, f64);
}

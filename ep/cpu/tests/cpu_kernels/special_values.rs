//! Elementwise ops at the values that users ask about: zeros of both signs, ties, infinities, NaN, the smallest and the largest numbers, signs of
//! divisions, counts of shifts. On a CPU; the conformance suite and the CUDA tests compare other devices with it.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

/// The result of an op over inputs of one shape.
fn run<T: Element, O: Element + Default>(op: Op, inputs: &[&[T]]) -> Result<Vec<O>, KernelError> {
    assert_eq!(op.elementwise_output(T::DTYPE), O::DTYPE, "the elements of the result");
    let layout = Layout::contiguous(Shape::new(&[inputs[0].len()]).expect("a shape"));
    let mut inputs: Vec<Vec<T>> = inputs.iter().map(|input| input.to_vec()).collect();
    let mut out = vec![O::default(); inputs[0].len()];
    // SAFETY: the memory has the elements of the layout, and is used by this call alone, before it goes.
    let view = |memory: *mut u8, dtype, access| unsafe { Operand::new(memory, dtype, layout, access) };
    let input = |input: &mut Vec<T>| view(input.as_mut_ptr().cast(), T::DTYPE, Access::Read);
    let mut operands: Vec<Operand> = inputs.iter_mut().map(input).collect();
    operands.push(view(out.as_mut_ptr().cast(), op.elementwise_output(T::DTYPE), Access::Write));
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, T::DTYPE).expect("a kernel");
    let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream().expect("a stream");
    let (inputs, params) = (operands.len() - 1, &Params::default());
    match stream.launch(&mut KernelCall::new(kernel, &mut operands, inputs, params)) {
        Ok(()) => Ok(out),
        Err(Error::Kernel(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

/// A type of floats that the tests make from and compare as `f64`.
trait Float: Element + Default + PartialEq + std::fmt::Debug {
    const TINY: Self;
    const MOST: Self;
    fn of(x: f64) -> Self;
    fn value(self) -> f64;
}

macro_rules! floats {
    ($($float:ident: $tiny:expr, $most:expr, $of:expr;)*) => {$(
        impl Float for $float {
            const TINY: $float = $tiny;
            const MOST: $float = $most;

            fn of(x: f64) -> $float {
                $of(x)
            }

            fn value(self) -> f64 {
                self.into()
            }
        }
    )*};
}

floats! {
    f32: f32::from_bits(1), f32::MAX, nearest;
    f64: f64::from_bits(1), f64::MAX, f64::from;
    f16: f16::from_bits(1), f16::MAX, f16::from_f64;
    bf16: bf16::from_bits(1), bf16::MAX, bf16::from_f64;
}

fn nearest(x: f64) -> f32 {
    x as f32
}

/// Compares bits, so zeros have signs; all NaN are alike.
fn same(found: f64, expected: f64) -> bool {
    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
}

/// `cases` are pairs of an input and a result.
#[track_caller]
fn check_unary<T: Float>(op: Op, cases: &[(f64, f64)]) {
    let inputs: Vec<T> = cases.iter().map(|case| T::of(case.0)).collect();
    let found: Vec<T> = run(op, &[&inputs]).expect("it runs");
    for ((input, expected), found) in cases.iter().zip(found) {
        assert!(same(found.value(), *expected), "{op} of {input}: {found:?}, not {expected}");
    }
}

fn check_rounding<T: Float>() {
    let (inf, nan, tiny, most) = (f64::INFINITY, f64::NAN, T::TINY.value(), T::MOST.value());
    // Whole numbers and what is not finite stay, with their signs.
    let kept = [0.0, -0.0, 1.0, -1.0, 200.0, -200.0, most, -most, inf, -inf, nan];
    let kept = kept.map(|x| (x, x));
    for op in [Op::Floor, Op::Ceil, Op::Round, Op::Trunc] {
        check_unary::<T>(op, &kept);
    }
    check_unary::<T>(Op::Floor, &[(0.5, 0.0), (-0.5, -1.0), (2.75, 2.0), (-2.25, -3.0), (tiny, 0.0), (-tiny, -1.0)]);
    check_unary::<T>(Op::Ceil, &[(0.5, 1.0), (-0.5, -0.0), (2.25, 3.0), (-2.75, -2.0), (tiny, 1.0), (-tiny, -0.0)]);
    check_unary::<T>(Op::Trunc, &[(0.5, 0.0), (-0.5, -0.0), (2.75, 2.0), (-2.75, -2.0), (tiny, 0.0), (-tiny, -0.0)]);
    let ties = [(0.5, 0.0), (-0.5, -0.0), (1.5, 2.0), (2.5, 2.0), (-1.5, -2.0), (-2.5, -2.0), (3.5, 4.0)];
    check_unary::<T>(Op::Round, &ties);
    check_unary::<T>(Op::Round, &[(0.25, 0.0), (0.75, 1.0), (-0.25, -0.0), (-0.75, -1.0), (tiny, 0.0), (-tiny, -0.0)]);
    let signs =
        [(0.0, 0.0), (-0.0, 0.0), (tiny, 1.0), (-tiny, -1.0), (most, 1.0), (inf, 1.0), (-inf, -1.0), (nan, nan)];
    check_unary::<T>(Op::Sign, &signs);
    check_unary::<T>(Op::Reciprocal, &[(0.0, inf), (-0.0, -inf), (inf, 0.0), (-inf, -0.0), (4.0, 0.25), (nan, nan)]);
}

#[test]
fn rounding_keeps_zeros_and_takes_ties_to_even() {
    check_rounding::<f32>();
    check_rounding::<f64>();
    check_rounding::<f16>();
    check_rounding::<bf16>();
}

#[test]
fn signs_of_integers() {
    let found: Vec<i32> = run(Op::Sign, &[&[i32::MIN, -3, 0, 7, i32::MAX]]).expect("it runs");
    assert_eq!(found, [-1, -1, 0, 1, 1]);
    let found: Vec<i64> = run(Op::Sign, &[&[i64::MIN, 0, i64::MAX]]).expect("it runs");
    assert_eq!(found, [-1, 0, 1]);
}

fn check_predicates<T: Float>() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let zeros_and_numbers = [0.0, -0.0, T::TINY.value(), -T::TINY.value(), 1.0, T::MOST.value(), -T::MOST.value()];
    let inputs: Vec<T> = zeros_and_numbers.into_iter().chain([inf, -inf, nan, -nan]).map(T::of).collect();
    let expected = [
        (Op::IsNan, [false, false, false, true, true]),
        (Op::IsInf, [false, true, true, false, false]),
        (Op::IsFinite, [true, false, false, false, false]),
    ];
    for (op, [finite, rest @ ..]) in expected {
        let found: Vec<bool> = run(op, &[&inputs]).expect("it runs");
        assert_eq!(found, [[finite; 7].as_slice(), &rest].concat(), "{op} of {}", T::DTYPE);
    }
}

#[test]
fn predicates_tell_numbers_from_infinities_and_nan() {
    check_predicates::<f32>();
    check_predicates::<f64>();
    check_predicates::<f16>();
    check_predicates::<bf16>();
}

/// Dividend, divisor, quotient rounded down, remainder: as Python gives them.
fn check_divisions<T: Float>() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let cases = [
        (7.0, 2.0, 3.0, 1.0),
        (-7.0, 2.0, -4.0, 1.0),
        (7.0, -2.0, -4.0, -1.0),
        (-7.0, -2.0, 3.0, -1.0),
        (6.0, 2.0, 3.0, 0.0),
        (-6.0, 2.0, -3.0, 0.0),
        (6.0, -2.0, -3.0, -0.0),
        (0.5, 2.0, 0.0, 0.5),
        (-0.5, 2.0, -1.0, 1.5),
        (0.0, 3.0, 0.0, 0.0),
        (-0.0, 3.0, -0.0, 0.0),
        (0.0, -3.0, -0.0, -0.0),
        (1.0, inf, 0.0, 1.0),
        (-1.0, inf, -1.0, inf),
        (1.0, -inf, -1.0, -inf),
        (inf, 2.0, nan, nan),
        (1.0, 0.0, inf, nan),
        (-1.0, 0.0, -inf, nan),
        (0.0, 0.0, nan, nan),
        (nan, 1.0, nan, nan),
        (1.0, nan, nan, nan),
    ];
    let (left, right): (Vec<T>, Vec<T>) = cases.iter().map(|case| (T::of(case.0), T::of(case.1))).unzip();
    let quotients: Vec<T> = run(Op::FloorDiv, &[&left, &right]).expect("it runs");
    let remainders: Vec<T> = run(Op::Remainder, &[&left, &right]).expect("it runs");
    for (case, (quotient, remainder)) in cases.iter().zip(quotients.into_iter().zip(remainders)) {
        assert!(same(quotient.value(), case.2), "{} // {} is {quotient:?} in {}", case.0, case.1, T::DTYPE);
        assert!(same(remainder.value(), case.3), "{} % {} is {remainder:?} in {}", case.0, case.1, T::DTYPE);
    }
}

#[test]
fn divisions_of_floats_round_down() {
    check_divisions::<f32>();
    check_divisions::<f64>();
    check_divisions::<f16>();
    check_divisions::<bf16>();
    // The quotient rounds to 10, and is less: 0.1 as a float is more than a tenth.
    let found: Vec<f64> = run(Op::FloorDiv, &[&[1.0f64], &[0.1]]).expect("it runs");
    assert_eq!(found, [9.0]);
    // The whole numbers 2051 and 259 have more bits than the types, and are rounded to even ones.
    let found: Vec<f16> = run(Op::FloorDiv, &[&[f16::of(10_256.0)], &[f16::of(5.0)]]).expect("it runs");
    assert_eq!(found, [f16::of(2_052.0)]);
    let found: Vec<bf16> = run(Op::FloorDiv, &[&[bf16::of(1_816.0)], &[bf16::of(7.0)]]).expect("it runs");
    assert_eq!(found, [bf16::of(260.0)]);
}

#[test]
fn a_quotient_of_more_than_22_bits_is_within_two_units() {
    let (mut state, mut numbers) = (1u64, Vec::new());
    for _ in 0..200_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let exponent = 127 + (state >> 20) as u32 % 60 - 30;
        numbers.push(f32::from_bits((exponent << 23) | (state >> 41) as u32));
    }
    let (left, right) = numbers.split_at(100_000);
    let found: Vec<f32> = run(Op::FloorDiv, &[left, right]).expect("it runs");
    let mut large = 0;
    for ((x, y), found) in left.iter().zip(right).zip(found) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let exact = ((x - x % y) / y).round();
        let is_large = exact >= f64::from(1 << 22);
        large += usize::from(is_large);
        let allowed = if is_large { 2.0 * 2f64.powi(exact.log2().floor() as i32 - 23) } else { 0.0 };
        assert!((f64::from(found) - exact).abs() <= allowed, "{x} // {y}: {found}, not {exact}");
    }
    assert!(large > 10_000, "{large} quotients are large");
}

#[test]
fn divisions_of_integers_round_down_and_wrap() {
    let (left, right) = ([7, -7, 7, -7, 6, i32::MIN, i32::MIN], [2, 2, -2, -2, -3, -1, 1]);
    assert_eq!(run(Op::FloorDiv, &[&left, &right]), Ok(vec![3, -4, -4, 3, -2, i32::MIN, i32::MIN]));
    assert_eq!(run(Op::Remainder, &[&left, &right]), Ok(vec![1, 1, -1, -1, 0, 0, 0]));
    assert_eq!(run(Op::FloorDiv, &[&[200u8, 7], &[7, 200]]), Ok(vec![28u8, 0]));
    assert_eq!(run(Op::Remainder, &[&[200u8, 7], &[7, 200]]), Ok(vec![4u8, 7]));
    for op in [Op::FloorDiv, Op::Remainder] {
        let refused = run::<i64, i64>(op, &[&[1, 2, 3], &[1, 0, 0]]);
        assert_eq!(refused, Err(KernelError::DivisionByZero { op, index: 1 }));
    }
}

#[test]
fn a_count_out_of_range_empties_what_it_shifts() {
    let counts = [0, 1, 31, 32, 33, -1, i32::MAX, i32::MIN];
    let (ones, most) = ([-5; 8], [i32::MAX; 8]);
    assert_eq!(run(Op::Shl, &[&ones, &counts]), Ok(vec![-5, -10, i32::MIN, 0, 0, 0, 0, 0]));
    assert_eq!(run(Op::Shr, &[&ones, &counts]), Ok(vec![-5, -3, -1, -1, -1, -1, -1, -1]));
    assert_eq!(run(Op::Shr, &[&most, &counts]), Ok(vec![i32::MAX, i32::MAX >> 1, 0, 0, 0, 0, 0, 0]));
    let counts = [0i64, 63, 64, 1 << 32, -1];
    assert_eq!(run(Op::Shl, &[&[3; 5], &counts]), Ok(vec![3, i64::MIN, 0, 0, 0]));
    assert_eq!(run(Op::Shr, &[&[i64::MIN; 5], &counts]), Ok(vec![i64::MIN, -1, -1, -1, -1]));
    let counts = [0u8, 1, 7, 8, 255];
    assert_eq!(run(Op::Shl, &[&[0x81u8; 5], &counts]), Ok(vec![0x81u8, 2, 0x80, 0, 0]));
    assert_eq!(run(Op::Shr, &[&[0x81u8; 5], &counts]), Ok(vec![0x81u8, 0x40, 1, 0, 0]));
}

#[test]
fn a_clamp_takes_the_upper_bound_last_and_keeps_nan() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let (x, low) = ([-5.0, 0.5, 5.0, inf, -inf, 0.0], [-1.0, -1.0, -1.0, -1.0, -1.0, 3.0]);
    let found: Vec<f32> = run(Op::Clamp, &[&x, &low, &[2.0; 6]]).expect("it runs");
    assert_eq!(found, [-1.0, 0.5, 2.0, 2.0, -1.0, 2.0]);
    let found: Vec<f32> = run(Op::Clamp, &[&[nan, 0.0, 0.0], &[0.0, nan, 0.0], &[1.0, 1.0, nan]]).expect("it runs");
    assert!(found.iter().all(|x| x.is_nan()), "{found:?}");
    assert_eq!(run(Op::Clamp, &[&[0u8, 9, 255], &[3; 3], &[200; 3]]), Ok(vec![3u8, 9, 200]));
}

#[test]
fn bits_and_truth_values() {
    let (left, right) = ([0b1100u8, 255, 0], [0b1010u8, 0x0f, 0]);
    assert_eq!(run(Op::BitAnd, &[&left, &right]), Ok(vec![0b1000u8, 0x0f, 0]));
    assert_eq!(run(Op::BitOr, &[&left, &right]), Ok(vec![0b1110u8, 255, 0]));
    assert_eq!(run(Op::BitXor, &[&left, &right]), Ok(vec![0b0110u8, 0xf0, 0]));
    assert_eq!(run(Op::BitNot, &[&left]), Ok(vec![0xf3u8, 0, 255]));
    assert_eq!(run(Op::BitNot, &[&[0i64, -1, i64::MIN]]), Ok(vec![-1i64, 0, i64::MAX]));
    let (left, right) = ([false, false, true, true], [false, true, false, true]);
    assert_eq!(run(Op::And, &[&left, &right]), Ok(vec![false, false, false, true]));
    assert_eq!(run(Op::Or, &[&left, &right]), Ok(vec![false, true, true, true]));
    assert_eq!(run(Op::Xor, &[&left, &right]), Ok(vec![false, true, true, false]));
    assert_eq!(run(Op::Not, &[&left]), Ok(vec![true, true, false, false]));
}

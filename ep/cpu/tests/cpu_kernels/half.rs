//! The 16-bit floats: how often results are rounded, to where, and matrix products larger than a panel.

use std::cell::RefCell;

use crate::reference;
use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

/// How the tests treat both types alike.
trait Half: Element {
    /// Significant bits.
    const DIGITS: i32;
    fn of(value: f32) -> Self;
    fn from_pattern(bits: u16) -> Self;
    fn pattern(self) -> u16;
    fn value(self) -> f64;
}

macro_rules! halves {
    ($($half:ident $digits:literal;)*) => {$(
        impl Half for $half {
            const DIGITS: i32 = $digits;

            fn of(value: f32) -> $half {
                $half::from_f32(value)
            }

            fn from_pattern(bits: u16) -> $half {
                $half::from_bits(bits)
            }

            fn pattern(self) -> u16 {
                self.to_bits()
            }

            fn value(self) -> f64 {
                self.into()
            }
        }
    )*};
}

halves! {
    f16 11;
    bf16 8;
}

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

fn view<T: Element>(memory: &mut [T], layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end <= memory.len());
    // SAFETY: the span lies within the memory, which tests keep alive and untouched while the operand is used.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), T::DTYPE, layout, access) }
}

fn launch<T: Element, O: Element>(op: Op, inputs: &mut [(&mut [T], Layout)], out: (&mut [O], Layout), params: &Params) {
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, T::DTYPE).unwrap();
    let mut operands: Vec<Operand> =
        inputs.iter_mut().map(|(memory, layout)| view(memory, *layout, Access::Read)).collect();
    operands.push(view(out.0, out.1, Access::Write));
    let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap();
    let inputs = inputs.len();
    stream.launch(&mut KernelCall::new(kernel, &mut operands, inputs, params)).unwrap();
}

fn cast<T: Element, O: Element + Default>(mut from: Vec<T>) -> Vec<O> {
    let layout = dense(&[from.len()]);
    let mut to = vec![O::default(); from.len()];
    launch(Op::Cast, &mut [(&mut from, layout)], (&mut to, layout), &Params::to(O::DTYPE));
    to
}

fn fill<T: Element + Default>(value: Scalar) -> T {
    thread_local! {
        // A device asks the system for the number of its cores, which takes longer than a fill.
        static STREAM: RefCell<Box<dyn Stream>> =
            RefCell::new(CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap());
    }
    let mut memory = [T::default()];
    let mut target = view(&mut memory, dense(&[1]), Access::Write);
    STREAM.with_borrow_mut(|stream| stream.fill(&mut target, value)).unwrap();
    memory[0]
}

fn every<T: Half>() -> Vec<T> {
    (0..=u16::MAX).map(T::from_pattern).collect()
}

/// Both f32 and f64 have every 16-bit float, so there and back changes nothing.
fn casts_there_and_back<T: Half + Default>() {
    for back in [cast::<f32, T>(cast(every::<T>())), cast::<f64, T>(cast(every::<T>()))] {
        for (bits, back) in (0..=u16::MAX).zip(back) {
            let is_nan = T::from_pattern(bits).value().is_nan();
            assert!(back.pattern() == bits || (is_nan && back.value().is_nan()), "{bits:#06x} became {back:?}");
        }
    }
}

#[test]
fn every_pattern_survives_a_wider_type() {
    casts_there_and_back::<f16>();
    casts_there_and_back::<bf16>();
}

/// The numbers around the middle between each finite number and the next: below it goes down, above it up, and
/// the middle itself to the one whose last bit is 0.
fn rounds_once<T: Half + Default>() {
    let (mut numbers, mut expected) = (Vec::new(), Vec::new());
    for bits in 0..=u16::MAX {
        let (low, high) = (T::from_pattern(bits), T::from_pattern(bits.wrapping_add(1)));
        if !low.value().is_finite() || !high.value().is_finite() {
            continue;
        }
        let middle = f64::midpoint(low.value(), high.value());
        let even = if bits % 2 == 0 { low } else { high };
        numbers.extend([low.value(), middle]);
        expected.extend([low, even]);
        // Nearly the middle: to f32 it is, or one of its neighbours.
        for near in [1e-12, 0.75 * 2f64.powi(T::DIGITS - 23)] {
            let away = (high.value() - middle) * near;
            numbers.extend([middle - away, middle + away]);
            expected.extend([low, high]);
        }
    }
    assert!(numbers.len() > 100_000);
    for ((number, found), expected) in numbers.iter().zip(cast::<f64, T>(numbers.clone())).zip(expected) {
        assert_eq!(found.value(), expected.value(), "{number:e}");
        assert_eq!(fill::<T>(Scalar::F64(*number)).value(), expected.value(), "{number:e}");
    }
}

#[test]
fn a_double_is_rounded_once() {
    rounds_once::<f16>();
    rounds_once::<bf16>();
}

#[test]
fn a_long_integer_is_rounded_once() {
    // The middle between two numbers of each type, and its neighbours, which a double does not tell apart.
    let middle = (1i64 << 60) + (1 << 52);
    let numbers = [middle - 1, middle, middle + 1, -middle - 1, -middle + 1, i64::MIN, i64::MAX];
    let (low, high) = (2f64.powi(60), 2f64.powi(60) + 2f64.powi(53));
    let ends = 2f64.powi(63);
    let expected = [low, low, high, -high, -low, -ends, ends];
    let found = cast::<i64, bf16>(numbers.to_vec());
    assert_eq!(found.iter().map(|x| x.value()).collect::<Vec<_>>(), expected);
    for (number, expected) in numbers.into_iter().zip(expected) {
        assert_eq!(fill::<bf16>(Scalar::I64(number)).value(), expected, "{number}");
    }
    assert_eq!(fill::<f32>(Scalar::I64((1 << 60) + (1 << 36) + 1)), 2f32.powi(60) + 2f32.powi(37));
    let found = cast::<i64, f16>(vec![65519, 65520, -65520, 2049, 2051, i64::MIN]);
    let infinite = f64::INFINITY;
    let expected = [65504.0, infinite, -infinite, 2048.0, 2052.0, -infinite];
    assert_eq!(found.iter().map(|x| x.value()).collect::<Vec<_>>(), expected);
}

#[test]
fn a_fill_takes_the_nearest() {
    assert_eq!(fill::<f16>(Scalar::from(0.1)).value(), 0.0999755859375);
    assert_eq!(fill::<bf16>(Scalar::from(0.1)).value(), 0.10009765625);
    assert_eq!(fill::<f16>(Scalar::from(1e6)), f16::INFINITY);
    assert_eq!(fill::<f16>(Scalar::I64(-1_000_000)), f16::NEG_INFINITY);
    assert!(fill::<bf16>(Scalar::from(f64::NAN)).is_nan());
}

fn reduce<T: Half + Default>(op: Op, mut values: Vec<T>) -> f64 {
    let mut out = [T::default()];
    let layout = dense(&[values.len()]);
    launch(op, &mut [(&mut values, layout)], (&mut out, dense(&[])), &Params::default());
    out[0].value()
}

#[test]
fn sums_and_means_are_rounded_once() {
    // One by one, a sum of ones would stick at 2048 in f16 and at 256 in bf16.
    assert_eq!(reduce(Op::Sum, vec![f16::ONE; 5000]), 5000.0);
    assert_eq!(reduce(Op::Sum, vec![bf16::ONE; 1 << 20]), f64::from(1 << 20));
    // The sum is far past the range, the mean is not.
    assert_eq!(reduce(Op::Mean, vec![f16::MAX; 1000]), 65504.0);
    assert_eq!(reduce(Op::Mean, vec![bf16::MAX; 1024]), bf16::MAX.value());
}

/// The range of `bf16` is that of the `f32` that its sums are kept in.
#[test]
fn a_sum_on_the_way_may_be_past_the_range() {
    let (most, least) = (bf16::MAX, bf16::MIN);
    assert_eq!(reduce(Op::Sum, vec![most, most, least, least, most]), most.value());
    assert_eq!(reduce(Op::Mean, vec![least, least, bf16::ZERO, bf16::ZERO]), least.value() / 2.0);
    assert_eq!(reduce(Op::Sum, vec![most, most]), f64::INFINITY);
    assert_eq!(reduce(Op::Mean, vec![most, bf16::INFINITY]), f64::INFINITY);
    assert!(reduce(Op::Mean, vec![bf16::INFINITY, most, bf16::NEG_INFINITY]).is_nan());
}

/// Softmax of a row in which every exponential would be rounded on its own.
fn softmax_within_half_a_step<T: Half + Default>() {
    let mut row: Vec<T> = (0..97).map(|i| T::of((i as f32 * 0.37).sin() * 3.0)).collect();
    let exponentials: Vec<f64> = row.iter().map(|x| x.value().exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    let mut out = vec![T::default(); row.len()];
    let params = Params::over(Axes::new(&[0]).unwrap());
    let layout = dense(&[row.len()]);
    launch(Op::Softmax, &mut [(&mut row, layout)], (&mut out, layout), &params);
    for (found, exponential) in out.iter().zip(exponentials) {
        let exact = exponential / sum;
        let half = 2f64.powi(exact.log2().floor() as i32 - T::DIGITS);
        assert!((found.value() - exact).abs() <= half * 1.001, "{found:?} is not {exact}");
    }
}

#[test]
fn softmax_is_rounded_once() {
    softmax_within_half_a_step::<f16>();
    softmax_within_half_a_step::<bf16>();
}

/// A product with several panels in every direction, of whole numbers, so that sums in f32 are exact and what
/// comes out is the exact sum, rounded once.
fn products_of_whole_numbers<T: Half + Default>(turned: bool) {
    let (m, k, n) = (270, 530, 260);
    let number = |i: usize, j: usize| ((i * 31 + j * 17) % 13) as f32 - 5.0;
    let layout = |rows, columns| match turned {
        false => dense(&[rows, columns]),
        true => dense(&[columns, rows]).permute(&[1, 0]).unwrap(),
    };
    let memory = |rows: usize, columns: usize, number: &dyn Fn(usize, usize) -> f32| {
        let mut memory = vec![T::default(); rows * columns];
        for i in 0..rows {
            for j in 0..columns {
                memory[if turned { j * rows + i } else { i * columns + j }] = T::of(number(i, j));
            }
        }
        memory
    };
    let mut a = memory(m, k, &number);
    let mut b = memory(k, n, &|i, j| number(i + 7, j * 3));
    let mut out = memory(m, n, &|_, _| f32::NAN);
    let inputs = &mut [(&mut a[..], layout(m, k)), (&mut b[..], layout(k, n))];
    launch(Op::MatMul, inputs, (&mut out, layout(m, n)), &Params::default());
    for i in 0..m {
        for j in 0..n {
            let exact: f32 = (0..k).map(|l| number(i, l) * number(l + 7, j * 3)).sum();
            let found = out[if turned { j * m + i } else { i * n + j }];
            assert_eq!(found.value(), T::of(exact).value(), "row {i}, column {j}, turned: {turned}");
        }
    }
}

#[test]
fn a_product_of_many_panels_is_rounded_once() {
    for turned in [false, true] {
        products_of_whole_numbers::<f16>(turned);
        products_of_whole_numbers::<bf16>(turned);
    }
}

/// The largest error of `op` in ulps of `T` over every value of `T`; where the exact result is NaN or infinite in `T`, the same is required.
fn worst_error<T: Half + Default>(op: Op, exact: impl Fn(f64) -> f64) -> f64 {
    worst_error_beside::<T>(op, &mut [], exact)
}

/// As [`worst_error`], with further inputs of one element each.
fn worst_error_beside<T: Half + Default>(op: Op, others: &mut [T], exact: impl Fn(f64) -> f64) -> f64 {
    let mut values: Vec<T> = every();
    let layout = dense(&[values.len()]);
    let mut found = vec![T::default(); values.len()];
    let mut inputs = vec![(&mut values[..], layout)];
    inputs.extend(others.chunks_mut(1).map(|other| (other, dense(&[]))));
    launch(op, &mut inputs, (&mut found, layout), &Params::default());
    // The least exponent of a normal number.
    let least = if T::DIGITS == 11 { -14 } else { -126 };
    let exact: Vec<f64> = values.iter().map(|x| exact(x.value())).collect();
    let nearest = cast::<f64, T>(exact.clone());
    let mut worst: f64 = 0.0;
    for (((x, exact), near), found) in values.iter().zip(exact).zip(nearest).zip(found) {
        let (near, found) = (near.value(), found.value());
        if near.is_nan() || near.is_infinite() {
            assert!(found == near || (found.is_nan() && near.is_nan()), "{op:?} of {}: {found}, not {near}", x.value());
            continue;
        }
        let exponent = if exact == 0.0 { least } else { (exact.abs().log2().floor() as i32).max(least) };
        assert!(found.is_finite(), "{op:?} of {}: {found}, not {near}", x.value());
        worst = worst.max((found - exact).abs() / 2f64.powi(exponent + 1 - T::DIGITS));
    }
    worst
}

/// The functions of 16-bit floats are computed in `f32` and rounded once, so a result is the nearest or, beside a tie, its neighbour.
#[test]
fn functions_of_every_16_bit_float_are_within_half_a_unit_and_little_more() {
    for op in Op::ALL.into_iter().filter(|op| op.class() == OpClass::Unary) {
        let Some(exact) = reference::function(op) else { continue };
        let errors = [worst_error::<f16>(op, exact), worst_error::<bf16>(op, exact)];
        assert!(errors.iter().all(|error| *error <= 0.501), "{op:?}: {errors:?}");
    }
}

#[test]
fn angles_of_points_are_within_half_a_unit_and_little_more() {
    for x in [0.0, -0.0, 1.0, -1.0, 0.3, -250.0, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut narrow, mut wide) = ([f16::of(x)], [bf16::of(x)]);
        let exact = [narrow[0].value(), wide[0].value()].map(|x| move |y: f64| y.atan2(x));
        let errors =
            [worst_error_beside(Op::Atan2, &mut narrow, exact[0]), worst_error_beside(Op::Atan2, &mut wide, exact[1])];
        assert!(errors.iter().all(|error| *error <= 0.501), "{x}: {errors:?}");
    }
}

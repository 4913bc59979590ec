//! What kernels refuse, and the rules that a random comparison seldom meets: integer division, NaN,
//! overlap, wrong operands.

use std::f64::consts::PI;

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(shape(dims))
}

fn view<T: Element>(memory: &mut [T], layout: Layout, access: Access) -> Operand<'static> {
    as_dtype(memory, T::DTYPE, layout, access)
}

fn as_dtype<T: Element>(memory: &mut [T], dtype: DType, layout: Layout, access: Access) -> Operand<'static> {
    assert!(layout.span_elements().end * dtype.size() <= size_of_val(memory));
    // SAFETY: the span lies within the memory; tests use the operands of one call in that call, and
    // keep the memory alive and untouched meanwhile.
    unsafe { Operand::new(memory.as_mut_ptr().cast(), dtype, layout, access) }
}

fn kernel(op: Op, dtype: DType) -> Kernel {
    streamvm_kernels::builtin().get(op, DeviceKind::CPU, dtype).unwrap()
}

fn launch(kernel: Kernel, operands: &mut [Operand<'static>], params: &Params) -> Result<(), KernelError> {
    let device = CpuDevice::new(0, CpuConfig::default());
    let inputs = operands.len() - 1;
    let launched = device.create_stream().unwrap().launch(&mut KernelCall::new(kernel, operands, inputs, params));
    match launched {
        Ok(()) => Ok(()),
        Err(Error::Kernel(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

/// `op` on slices, all of them of one shape.
fn run<T: Element, O: Element>(
    op: Op,
    inputs: &mut [&mut [T]],
    out: &mut [O],
    params: &Params,
) -> Result<(), KernelError> {
    let mut operands: Vec<Operand> = inputs
        .iter_mut()
        .map(|input| {
            let layout = dense(&[input.len()]);
            view(input, layout, Access::Read)
        })
        .collect();
    let layout = dense(&[out.len()]);
    let dtype = if op.gives_bool() { DType::Bool } else { O::DTYPE };
    operands.push(as_dtype(out, dtype, layout, Access::Write));
    launch(kernel(op, T::DTYPE), &mut operands, params)
}

#[test]
fn integer_division_by_zero_names_the_first_element_and_writes_nothing() {
    let mut out = [7i32; 4];
    let refused = run(Op::Div, &mut [&mut [1, 2, 3, 4], &mut [1, 1, 0, 0]], &mut out, &Params::default());
    assert_eq!(refused, Err(KernelError::DivisionByZero { op: Op::Div, index: 2 }));
    assert!(refused.unwrap_err().to_string().contains("element 2"));
    assert_eq!(out, [7; 4]);
}

#[test]
fn the_index_of_a_broadcast_divisor_is_that_of_the_output() {
    let (mut a, mut b, mut out) = ([1u8; 6], [1u8, 0], [9u8; 6]);
    let mut operands = [
        view(&mut a, dense(&[3, 2]), Access::Read),
        view(&mut b, dense(&[2, 1]).permute(&[1, 0]).unwrap(), Access::Read),
        view(&mut out, dense(&[3, 2]), Access::Write),
    ];
    let refused = launch(kernel(Op::Div, DType::U8), &mut operands, &Params::default());
    assert_eq!(refused, Err(KernelError::DivisionByZero { op: Op::Div, index: 1 }));
    // Without output elements there is no division.
    let mut operands = [
        view(&mut a, dense(&[0, 2]), Access::Read),
        view(&mut b, dense(&[2]), Access::Read),
        view(&mut out, dense(&[0, 2]), Access::Write),
    ];
    launch(kernel(Op::Div, DType::U8), &mut operands, &Params::default()).unwrap();
}

#[test]
fn a_failed_division_in_place_leaves_its_input() {
    let (mut a, mut b) = ([8i64, 6], [2i64, 0]);
    let mut operands = [
        view(&mut a, dense(&[2]), Access::Read),
        view(&mut b, dense(&[2]), Access::Read),
        view(&mut a, dense(&[2]), Access::Write),
    ];
    assert!(launch(kernel(Op::Div, DType::I64), &mut operands, &Params::default()).is_err());
    assert_eq!(a, [8, 6]);
}

#[test]
fn integer_division_truncates_and_wraps() {
    let mut out = [0i32; 4];
    let mut inputs = [&mut [i32::MIN, -7, 7, -7][..], &mut [-1, 2, -2, -2]];
    run(Op::Div, &mut inputs, &mut out, &Params::default()).unwrap();
    assert_eq!(out, [i32::MIN, -3, -3, 3]);
    let mut out = [0i64];
    let mut inputs = [&mut [i64::MIN][..], &mut [-1]];
    run(Op::Div, &mut inputs, &mut out, &Params::default()).unwrap();
    assert_eq!(out, [i64::MIN]);
}

#[test]
fn float_division_by_zero_is_infinite() {
    let mut out = [0f32; 3];
    let mut inputs = [&mut [1f32, -1.0, 0.0][..], &mut [0.0; 3]];
    run(Op::Div, &mut inputs, &mut out, &Params::default()).unwrap();
    assert_eq!(out[..2], [f32::INFINITY, f32::NEG_INFINITY]);
    assert!(out[2].is_nan());
}

#[test]
fn a_negative_integer_exponent_is_refused() {
    let mut out = [0i32; 3];
    let mut inputs = [&mut [2, 2, 2][..], &mut [3, -1, -2]];
    let refused = run(Op::Pow, &mut inputs, &mut out, &Params::default());
    let expected = KernelError::NegativeExponent { op: Op::Pow, index: 1, exponent: -1 };
    assert_eq!(refused, Err(expected));
}

#[test]
fn an_index_past_an_axis_is_named_and_nothing_is_written() {
    // Along the first of two axes: element 2 is in the first column and the second row.
    for (indices, index, row) in [([2i32, 0, 3, -1], 2, 3), ([0, -7, 3, 0], 1, -7)] {
        for (op, rows) in [(Op::TakeAlongAxis, 2), (Op::Scatter, 3), (Op::ScatterAdd, 3)] {
            let (mut x, mut source) = ([1f64, 2.0, 3.0, 4.0, 5.0, 6.0], [7f64, 8.0, 9.0, 10.0]);
            let (mut indices, mut out) = (indices, [9f64; 6]);
            let mut operands = vec![
                view(&mut x, dense(&[3, 2]), Access::Read),
                view(&mut indices, dense(&[2, 2]), Access::Read),
                view(&mut source, dense(&[2, 2]), Access::Read),
                view(&mut out, dense(&[rows, 2]), Access::Write),
            ];
            if op == Op::TakeAlongAxis {
                operands.remove(2);
            }
            let along = Params::over(Axes::new(&[0]).unwrap());
            let refused = launch(kernel(op, DType::F64), &mut operands, &along);
            let expected = KernelError::RowOutOfRange { op, index, row };
            assert_eq!(refused, Err(expected.clone()));
            assert_eq!(out, [9.0; 6]);
            let text = format!(
                "{op}: the index {row} is past the axis, whose places count from 0; it is element {index} of the indices, row-major"
            );
            assert_eq!(expected.to_string(), text);
        }
    }
}

#[test]
fn an_index_out_of_range_is_named_and_nothing_is_written() {
    for (indices, index, row) in [([2i64, -1, 9], 1, -1), ([0, 1, 3], 2, 3), ([i64::MIN, i64::MAX, 0], 0, i64::MIN)] {
        let mut table = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let (mut indices, mut out) = (indices, [9f32; 6]);
        let mut operands = [
            view(&mut table, dense(&[3, 2]), Access::Read),
            view(&mut indices, dense(&[3]), Access::Read),
            view(&mut out, dense(&[3, 2]), Access::Write),
        ];
        let refused = launch(kernel(Op::IndexSelect, DType::F32), &mut operands, &Params::default());
        let expected = KernelError::RowOutOfRange { op: Op::IndexSelect, index, row };
        assert_eq!(refused, Err(expected.clone()));
        assert_eq!(out, [9.0; 6]);
        let text = expected.to_string();
        assert!(
            text.contains(&format!("the index {row} is no row of the table"))
                && text.contains(&format!("element {index} of the indices")),
            "{text}"
        );
    }
}

/// The mean is a million times the deviation.
#[test]
fn layer_norm_keeps_its_digits_beside_a_large_mean() {
    let mut x: [f32; 4] = [1e6, 1e6 + 1.0, 1e6 + 2.0, 1e6 + 3.0];
    let (mut weight, mut bias, mut out) = ([1f32, 1.0, 2.0, 1.0], [0f32, 0.0, 0.0, 10.0], [0f32; 4]);
    let mut operands = [
        view(&mut x, dense(&[4]), Access::Read),
        view(&mut weight, dense(&[4]), Access::Read),
        view(&mut bias, dense(&[4]), Access::Read),
        view(&mut out, dense(&[4]), Access::Write),
    ];
    launch(kernel(Op::LayerNorm, DType::F32), &mut operands, &Params::epsilon(0.0)).unwrap();
    let root = 1.25f64.sqrt();
    assert_eq!(out, [-1.5 / root, -0.5 / root, 1.0 / root, 1.5 / root + 10.0].map(|x| x as f32));
}

#[test]
fn integer_powers_wrap_also_for_huge_exponents() {
    let mut out = [0i64; 4];
    let mut inputs = [&mut [3i64, -1, 2, 0][..], &mut [41, i64::MAX, i64::MAX, 0]];
    run(Op::Pow, &mut inputs, &mut out, &Params::default()).unwrap();
    assert_eq!(out, [3i64.wrapping_pow(41), -1, 0, 1]);
}

#[test]
fn nan_passes_through_min_max_and_relu() {
    let nan = f64::NAN;
    for op in [Op::Min, Op::Max] {
        let mut out = [0f64; 3];
        let mut inputs = [&mut [nan, 1.0, nan][..], &mut [1.0, nan, nan]];
        run(op, &mut inputs, &mut out, &Params::default()).unwrap();
        assert!(out.iter().all(|x| x.is_nan()), "{op}");
    }
    let mut out = [0f64; 2];
    run(Op::Relu, &mut [&mut [nan, -1.0]], &mut out, &Params::default()).unwrap();
    assert!(out[0].is_nan() && out[1] == 0.0);
}

/// A reduction of one axis to a scalar.
fn reduce<T: Element, O: Element + Default>(op: Op, values: &mut [T]) -> O {
    let mut out = [O::default()];
    let mut operands = [view(values, dense(&[values.len()]), Access::Read), view(&mut out, dense(&[]), Access::Write)];
    let params = Params::over(Axes::new(&[0]).unwrap());
    launch(kernel(op, T::DTYPE), &mut operands, &params).unwrap();
    out[0]
}

#[test]
fn argmax_takes_the_first_and_counts_nan_as_the_largest() {
    let nan = f32::NAN;
    assert_eq!(reduce::<f32, i64>(Op::ArgMax, &mut [1.0, 3.0, 3.0]), 1);
    assert_eq!(reduce::<f32, i64>(Op::ArgMax, &mut [1.0, nan, f32::INFINITY, nan]), 1);
    assert_eq!(reduce::<f32, i64>(Op::ArgMax, &mut [nan, 1.0]), 0);
    assert_eq!(reduce::<i32, i64>(Op::ArgMax, &mut [i32::MIN; 3]), 0);
}

#[test]
fn argmin_takes_the_first_and_counts_nan_as_the_smallest() {
    let nan = f32::NAN;
    assert_eq!(reduce::<f32, i64>(Op::ArgMin, &mut [3.0, -1.0, -1.0]), 1);
    assert_eq!(reduce::<f32, i64>(Op::ArgMin, &mut [1.0, nan, f32::NEG_INFINITY, nan]), 1);
    assert_eq!(reduce::<f32, i64>(Op::ArgMin, &mut [0.0, -0.0]), 0);
    assert_eq!(reduce::<u8, i64>(Op::ArgMin, &mut [255; 3]), 0);
    // Longer than a block.
    let mut long = vec![5i32; 40_000];
    (long[33_000], long[39_000]) = (-2, -2);
    assert_eq!(reduce::<i32, i64>(Op::ArgMin, &mut long), 33_000);
}

#[test]
fn products_wrap_and_are_rounded_once() {
    assert_eq!(reduce::<i32, i32>(Op::Prod, &mut [1 << 20, 1 << 11, 3]), i32::MIN);
    assert_eq!(reduce::<u8, u8>(Op::Prod, &mut [16, 17]), 16);
    assert_eq!(reduce::<f32, f32>(Op::Prod, &mut []), 1.0);
    // One by one, the f32 product would be rounded three times.
    let x = 1.0 + f32::EPSILON;
    assert_eq!(reduce::<f32, f32>(Op::Prod, &mut [x; 4]), (f64::from(x).powi(4)) as f32);
    assert_eq!(reduce::<f32, f32>(Op::Prod, &mut [100, 100, -100, -100].map(|n| 2f32.powi(n))), 1.0);
    assert_eq!(reduce::<f64, f64>(Op::Prod, &mut [1e200, 1e200, 1e-300]), f64::INFINITY);
}

#[test]
fn variances_keep_their_digits_far_from_zero() {
    assert_eq!(reduce::<f64, f64>(Op::Var, &mut [1.0, 2.0, 3.0, 4.0]), 1.25);
    assert_eq!(reduce::<f32, f32>(Op::Std, &mut [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), 2.0);
    assert_eq!(reduce::<f32, f32>(Op::Var, &mut [7.5]), 0.0);
    for length in [3, 100, 40_000] {
        // As the difference of the mean of squares and the square of the mean, nothing would be left of it.
        let mut far: Vec<f64> = (0..length).map(|i| 1e9 + f64::from(i % 2)).collect();
        let (count, ones) = (f64::from(length), f64::from(length / 2));
        let exact = ones / count * (1.0 - ones / count);
        let found = reduce::<f64, f64>(Op::Var, &mut far);
        assert!((found - exact).abs() <= 1e-6 * exact, "{length}: {found}, not {exact}");
        far[length as usize / 2] = f64::INFINITY;
        assert!(reduce::<f64, f64>(Op::Var, &mut far).is_nan());
    }
}

#[test]
fn any_and_all_of_no_elements() {
    assert_eq!([Op::Any, Op::All].map(|op| reduce::<bool, bool>(op, &mut [])), [false, true]);
    for length in [1, 7, 100, 20_000] {
        let (mut truths, mut lies) = (vec![true; length], vec![false; length]);
        assert_eq!([&mut truths, &mut lies].map(|all| reduce::<bool, bool>(Op::Any, all)), [true, false]);
        (truths[length / 2], lies[length / 2]) = (false, true);
        assert!(reduce::<bool, bool>(Op::Any, &mut lies) && !reduce::<bool, bool>(Op::All, &mut truths));
    }
}

#[test]
fn a_nan_anywhere_makes_the_extremes_nan() {
    for length in [1, 5, 33, 100] {
        for place in 0..length {
            let mut values = vec![1f32; length];
            values[place] = f32::NAN;
            assert!(reduce::<f32, f32>(Op::ReduceMax, &mut values).is_nan());
            assert!(reduce::<f32, f32>(Op::ReduceMin, &mut values).is_nan());
        }
    }
}

#[test]
fn extremes_of_infinities_are_infinite() {
    let mut low = [f32::NEG_INFINITY; 40];
    assert_eq!(reduce::<f32, f32>(Op::ReduceMax, &mut low), f32::NEG_INFINITY);
    let mut high = [f64::INFINITY; 40];
    assert_eq!(reduce::<f64, f64>(Op::ReduceMin, &mut high), f64::INFINITY);
}

#[test]
fn a_long_f32_sum_is_rounded_once() {
    // Added one by one in f32, the sum would stick at 2^24.
    let mut ones = vec![1f32; (1 << 24) + 64];
    assert_eq!(reduce::<f32, f32>(Op::Sum, &mut ones), ((1 << 24) + 64) as f32);
}

#[test]
fn softmax_of_huge_elements_does_not_overflow() {
    let mut out = [0f32; 3];
    let params = Params::over(Axes::new(&[0]).unwrap());
    run(Op::Softmax, &mut [&mut [1e30f32, 1e30, -1e30]], &mut out, &params).unwrap();
    assert_eq!(out, [0.5, 0.5, 0.0]);
    let masked = f32::NEG_INFINITY;
    run(Op::Softmax, &mut [&mut [masked, 2.0, masked]], &mut out, &params).unwrap();
    assert_eq!(out, [0.0, 1.0, 0.0]);
}

#[test]
fn casts_saturate_and_nan_is_zero() {
    let mut out = [9i32; 5];
    let mut input = [f64::NAN, 1e300, -1e300, PI, -PI];
    run(Op::Cast, &mut [&mut input], &mut out, &Params::to(DType::I32)).unwrap();
    assert_eq!(out, [0, i32::MAX, i32::MIN, 3, -3]);
}

#[test]
fn any_byte_but_zero_is_true_and_a_cast_from_bool_gives_one() {
    let (mut condition, mut out) = ([0u8, 1, 7], [0f32; 3]);
    let mut operands =
        [as_dtype(&mut condition, DType::Bool, dense(&[3]), Access::Read), view(&mut out, dense(&[3]), Access::Write)];
    let params = Params::to(DType::F32);
    launch(kernel(Op::Cast, DType::Bool), &mut operands, &params).unwrap();
    assert_eq!(out, [0.0, 1.0, 1.0]);
}

#[test]
fn matmul_without_depth_gives_zeros() {
    let mut out = [5f32; 6];
    let mut operands = [
        view::<f32>(&mut [], dense(&[2, 0]), Access::Read),
        view::<f32>(&mut [], dense(&[0, 3]), Access::Read),
        view(&mut out, dense(&[2, 3]), Access::Write),
    ];
    launch(kernel(Op::MatMul, DType::F32), &mut operands, &Params::default()).unwrap();
    assert_eq!(out, [0.0; 6]);
}

/// Operands over one memory of eight `f32`, each a range of it.
fn shared(ranges: &[(usize, usize, Access)]) -> (Vec<f32>, Vec<Operand<'static>>) {
    let mut memory = vec![1f32; 8];
    let operands = ranges.iter().map(|&(start, end, access)| {
        let layout = dense(&[8]).slice(0, start..end).unwrap();
        view(&mut memory, layout, access)
    });
    let operands = operands.collect();
    (memory, operands)
}

#[test]
fn partial_overlap_is_refused() {
    let (memory, mut operands) = shared(&[(0, 4, Access::Read), (4, 8, Access::Read), (1, 5, Access::Write)]);
    let refused = launch(kernel(Op::Add, DType::F32), &mut operands, &Params::default());
    assert!(matches!(refused, Err(KernelError::Overlap { written: 2, .. })), "{refused:?}");
    // The kernel refuses it as well when it is not launched by a stream.
    let params = Params::default();
    let mut call = KernelCall::new(kernel(Op::Add, DType::F32), &mut operands, 2, &params);
    let refused = (call.kernel.run)(&mut call);
    assert!(matches!(refused, Err(KernelError::Overlap { written: 2, .. })), "{refused:?}");
    assert_eq!(memory, [1.0; 8]);
}

#[test]
fn ops_that_combine_elements_do_not_run_in_place() {
    for op in [Op::Sum, Op::Mean, Op::ReduceMax, Op::ReduceMin, Op::Softmax] {
        let params = Params { keep_dims: true, ..Params::over(Axes::new(&[0]).unwrap()) };
        let (_memory, mut operands) = shared(&[(0, 1, Access::Read), (0, 1, Access::Write)]);
        // Under another name too: the code knows what it is.
        for name in [op, Op::Neg] {
            let named = Kernel { op: name, ..kernel(op, DType::F32) };
            let refused = launch(named, &mut operands, &params);
            assert!(matches!(refused, Err(KernelError::Overlap { .. })), "{op}: {refused:?}");
        }
    }
}

#[test]
fn an_operand_to_write_must_be_writable_and_reach_no_element_twice() {
    let add = || kernel(Op::Add, DType::F32);
    let (mut a, mut out) = ([1f32; 4], [0f32; 4]);
    let inputs = |a: &mut [f32]| [0; 2].map(|_| view(a, dense(&[4]), Access::Read));
    let [left, right] = inputs(&mut a);
    let mut operands = [left, right, view(&mut out, dense(&[4]), Access::Read)];
    let refused = launch(add(), &mut operands, &Params::default()).unwrap_err();
    assert!(matches!(&refused, KernelError::Operand { source, .. } if **source == Error::NotWritable));
    let wide = dense(&[1]).broadcast_to(&shape(&[4])).unwrap();
    let [left, right] = inputs(&mut a);
    let mut operands = [left, right, view(&mut out, wide, Access::Write)];
    let refused = launch(add(), &mut operands, &Params::default()).unwrap_err();
    assert!(refused.to_string().contains("more than once"), "{refused}");
}

#[test]
fn wrong_operands_are_named() {
    let add = || kernel(Op::Add, DType::F32);
    let (mut a, mut b, mut out) = ([1f32; 4], [1i32; 4], [0f32; 4]);
    let mut other = [1f32; 3];
    let mut operands = [
        view(&mut a, dense(&[4]), Access::Read),
        view(&mut b, dense(&[4]), Access::Read),
        view(&mut out, dense(&[4]), Access::Write),
    ];
    let text = launch(add(), &mut operands, &Params::default()).unwrap_err().to_string();
    assert!(text.contains("operand 1") && text.contains("i32"), "{text}");
    let text = launch(add(), &mut operands[1..], &Params::default()).unwrap_err().to_string();
    assert!(text.contains("2 inputs") && text.contains("found 1"), "{text}");

    let mut operands = [
        view(&mut a, dense(&[2, 2]), Access::Read),
        view(&mut other, dense(&[2]), Access::Read),
        view(&mut out, dense(&[4]), Access::Write),
    ];
    let text = launch(add(), &mut operands, &Params::default()).unwrap_err().to_string();
    assert!(text.contains("[2,2]") && text.contains("[4]"), "{text}");
    let mut operands = [
        view(&mut a, dense(&[2]), Access::Read),
        view(&mut other, dense(&[3]), Access::Read),
        view(&mut out, dense(&[2]), Access::Write),
    ];
    let text = launch(add(), &mut operands, &Params::default()).unwrap_err().to_string();
    assert!(text.contains("[2] and [3]"), "{text}");
}

#[test]
fn elements_at_odd_addresses_are_refused() {
    let (mut bytes, mut out) = ([0u64; 4], [0f32; 4]);
    let base = bytes.as_mut_ptr().cast::<u8>().wrapping_add(1);
    // SAFETY: 16 bytes from byte 1 lie within the 32.
    let odd = unsafe { Operand::new(base, DType::F32, dense(&[4]), Access::Read) };
    let mut operands = [odd, view(&mut out, dense(&[4]), Access::Write)];
    let text = launch(kernel(Op::Neg, DType::F32), &mut operands, &Params::default()).unwrap_err().to_string();
    assert!(text.contains("operand 0") && text.contains("multiples of 4"), "{text}");
}

/// A weight without elements may have windows of any size: no memory is allocated for them.
#[test]
fn the_gradient_of_an_input_that_no_output_uses_is_zeros() {
    let most = usize::from(u16::MAX);
    let by = Convolution { padding: [u16::MAX; 2], ..Convolution::default() };
    let (mut x, mut weight, mut dy, mut out) = ([1f32; 12], [0f32; 1], [0f32; 1], [7f32; 12]);
    let permuted = dense(&[4, 3, 1, 1]).permute(&[2, 3, 1, 0]).unwrap();
    let mut operands = [
        view(&mut x, dense(&[1, 1, 3, 4]), Access::Read),
        view(&mut weight, dense(&[0, 1, 3 + 2 * most, 4 + 2 * most]), Access::Read),
        view(&mut dy, dense(&[1, 0, 1, 1]), Access::Read),
        view(&mut out, permuted, Access::Write),
    ];
    launch(kernel(Op::Conv2dBackwardInput, DType::F32), &mut operands, &Params::convolution(by)).unwrap();
    assert_eq!(out, [0.0; 12]);
}

/// A sum of no products, in images of any size: the window of the second one reaches over billions of elements, for which no memory may be allocated.
#[test]
fn a_convolution_of_no_channels_is_zeros() {
    let far = 2_000_000_000;
    for (x_dims, weight_dims, out_dims) in
        [([1, 0, 100, 100], [4, 0, 3, 3], [1, 4, 98, 98]), ([1, 0, 1, far], [2, 0, 1, far], [1, 2, 1, 1])]
    {
        let (mut x, mut weight) = ([0f32; 1], [0f32; 1]);
        let mut out = vec![7f32; out_dims.iter().product()];
        let mut operands = [
            view(&mut x, dense(&x_dims), Access::Read),
            view(&mut weight, dense(&weight_dims), Access::Read),
            view(&mut out, dense(&out_dims), Access::Write),
        ];
        let by = Params::convolution(Convolution::default());
        launch(kernel(Op::Conv2d, DType::F32), &mut operands, &by).unwrap();
        assert!(out.iter().all(|&element| element == 0.0), "{out_dims:?}");
    }
}

/// The work of a pooling is a product of sizes that only operands without elements have.
#[test]
fn poolings_of_no_images_have_any_size() {
    let (by, side) = (Pooling { window: [u16::MAX; 2], stride: [1; 2], padding: [0; 2] }, 1 << 20);
    let (mut x, mut y, mut out) = ([0f32; 1], [0f32; 1], [0f32; 1]);
    let (large, small) = (dense(&[0, 1, side, side]), side + 1 - usize::from(u16::MAX));
    let pooled = dense(&[0, 1, small, small]);
    for op in [Op::MaxPool2d, Op::AvgPool2d] {
        let mut operands = [view(&mut x, large, Access::Read), view(&mut out, pooled, Access::Write)];
        launch(kernel(op, DType::F32), &mut operands, &Params::pooling(by)).unwrap();
    }
    for op in [Op::MaxPool2dBackward, Op::AvgPool2dBackward] {
        let mut operands = [
            view(&mut x, large, Access::Read),
            view(&mut y, pooled, Access::Read),
            view(&mut out, large, Access::Write),
        ];
        launch(kernel(op, DType::F32), &mut operands, &Params::pooling(by)).unwrap();
    }
}

#[test]
fn bad_parameters_are_refused() {
    let (mut a, mut out) = ([1f32; 4], [0f32; 4]);
    let mut operands = [view(&mut a, dense(&[4]), Access::Read), view(&mut out, dense(&[4]), Access::Write)];
    let mut refused = |op, params: &Params| launch(kernel(op, DType::F32), &mut operands, params).unwrap_err();
    assert_eq!(refused(Op::Cast, &Params::default()), KernelError::Op(OpError::MissingTarget { op: Op::Cast }));
    let elsewhere = Params::over(Axes::new(&[1]).unwrap());
    assert!(refused(Op::Sum, &elsewhere).to_string().contains("no axis 1"));
    let text = refused(Op::Softmax, &Params::default()).to_string();
    assert!(text.contains("exactly one axis"), "{text}");
}

//! Gradients beside differences of the functions themselves: softmax and log-softmax, convolutions, poolings. And what only log-softmax can.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

fn run<T: Element>(op: Op, inputs: &[&[T]], out: &mut [T]) {
    let dims = vec![vec![out.len()]; inputs.len() + 1];
    run_on(op, &Params::over(Axes::new(&[0]).unwrap()), &dims, inputs, out);
}

/// Runs a call on tensors without gaps, whose sizes are those of the inputs and then of the output.
fn run_on<T: Element>(op: Op, params: &Params, dims: &[Vec<usize>], inputs: &[&[T]], out: &mut [T]) {
    let operand = |base: *mut T, dims: &[usize], access| {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        // SAFETY: as many elements as the layout has, which outlive the launch; what is read is not written.
        unsafe { Operand::new(base.cast(), T::DTYPE, layout, access) }
    };
    let mut operands: Vec<Operand> =
        inputs.iter().zip(dims).map(|(input, dims)| operand(input.as_ptr().cast_mut(), dims, Access::Read)).collect();
    operands.push(operand(out.as_mut_ptr(), &dims[inputs.len()], Access::Write));
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, T::DTYPE).unwrap();
    let mut call = KernelCall::new(kernel, &mut operands, inputs.len(), params);
    CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap().launch(&mut call).unwrap();
}

#[test]
fn gradients_are_the_differences_of_the_functions() {
    for (forward, backward) in [(Op::Softmax, Op::SoftmaxBackward), (Op::LogSoftmax, Op::LogSoftmaxBackward)] {
        let x: Vec<f64> = (0..23).map(|i| f64::from(i * i % 17) * 0.3 - 2.0).collect();
        let dy: Vec<f64> = (0..23).map(|i| f64::from(i * 7 % 11) * 0.5 - 2.5).collect();
        // What the gradient is of.
        let loss = |x: &[f64]| {
            let mut y = vec![0.0; x.len()];
            run(forward, &[x], &mut y);
            y.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
        };
        let (mut y, mut dx) = (vec![0.0; 23], vec![0.0; 23]);
        run(forward, &[&x], &mut y);
        run(backward, &[&y, &dy], &mut dx);
        let step = 1e-5;
        for place in 0..23 {
            let moved = |by: f64| {
                let mut moved = x.clone();
                moved[place] += by;
                loss(&moved)
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((dx[place] - difference).abs() < 1e-8, "{backward} at {place}: {} and {difference}", dx[place]);
        }
        // Adding the same to all elements changes nothing.
        assert!(dx.iter().sum::<f64>().abs() < 1e-13, "{backward}");
    }
}

#[test]
fn log_softmax_is_finite_where_the_softmax_is_nothing() {
    let mut out = [0f32; 3];
    run(Op::LogSoftmax, &[&[1000.0, 0.0, -1000.0]], &mut out);
    assert_eq!(out, [0.0, -1000.0, -2000.0]);
    run(Op::LogSoftmax, &[&[f32::NEG_INFINITY, 3.0, 3.0]], &mut out);
    assert_eq!(out, [f32::NEG_INFINITY, -std::f32::consts::LN_2, -std::f32::consts::LN_2]);
    run(Op::LogSoftmax, &[&[f32::NAN, 3.0, 3.0]], &mut out);
    assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
}

#[test]
fn log_softmax_is_exact_where_it_is_nearly_nothing() {
    let mut out = [0f32; 2];
    run(Op::LogSoftmax, &[&[20.0, 0.0]], &mut out);
    let expected = -(-20f64).exp().ln_1p();
    assert!((f64::from(out[0]) / expected - 1.0).abs() < 1e-6, "{} and {expected}", out[0]);
}

/// Numbers of both signs, all different, that are drawn from a seed.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64 * 4.0 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

/// Checks a gradient by central differences of the function, in `f64`, and that the gradient in `f32` is that of `f64`. `inputs` are those of
/// the function, of which `of` is the one that the gradient is of.
fn check_gradient(forward: Op, backward: Op, params: &Params, inputs: &[Vec<usize>], output: &[usize], of: usize) {
    let elements = |dims: &[usize]| dims.iter().product::<usize>();
    let values: Vec<Vec<f64>> = inputs.iter().zip(11..).map(|(dims, seed)| numbers(elements(dims), seed)).collect();
    let dy = numbers(elements(output), 5);
    let all: Vec<Vec<usize>> = inputs.iter().cloned().chain([output.to_vec(), inputs[of].clone()]).collect();
    let loss = |values: &[Vec<f64>]| {
        let mut y = vec![0.0; dy.len()];
        let values: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
        run_on(forward, params, &all[..=inputs.len()], &values, &mut y);
        y.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
    };
    let mut gradient = vec![0.0; values[of].len()];
    let given: Vec<&[f64]> = values.iter().map(Vec::as_slice).chain([&dy[..]]).collect();
    run_on(backward, params, &all, &given, &mut gradient);
    let step = 1e-5;
    for place in 0..gradient.len() {
        let moved = |by: f64| {
            let mut moved = values.clone();
            moved[of][place] += by;
            loss(&moved)
        };
        let difference = (moved(step) - moved(-step)) / (2.0 * step);
        let found = gradient[place];
        assert!((found - difference).abs() < 1e-7, "{backward}, {params:?}, at {place}: {found} and {difference}");
    }
    let narrow = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
    let narrowed: Vec<Vec<f32>> = given.iter().map(|values| narrow(values)).collect();
    let mut in_f32 = vec![0f32; gradient.len()];
    run_on(backward, params, &all, &narrowed.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut in_f32);
    for (found, expected) in in_f32.iter().zip(&gradient) {
        assert!((f64::from(*found) - expected).abs() < 1e-4, "{backward} in f32: {found} and {expected}");
    }
}

#[test]
fn gradients_of_convolutions_are_the_differences_of_the_function() {
    let plain = Convolution::default();
    for (by, x, weight, y) in [
        (plain, [2, 2, 5, 4], [3, 2, 3, 2], [2, 3, 3, 3]),
        (Convolution { stride: [2, 1], padding: [1, 2], ..plain }, [2, 1, 6, 3], [2, 1, 3, 3], [2, 2, 3, 5]),
        (Convolution { dilation: [2, 1], groups: 2, ..plain }, [1, 4, 5, 3], [6, 2, 2, 2], [1, 6, 3, 2]),
        (Convolution { stride: [3, 2], dilation: [1, 2], ..plain }, [1, 1, 8, 6], [1, 1, 2, 2], [1, 1, 3, 2]),
    ] {
        let (params, inputs) = (Params::convolution(by), [x.to_vec(), weight.to_vec()]);
        check_gradient(Op::Conv2d, Op::Conv2dBackwardInput, &params, &inputs, &y, 0);
        check_gradient(Op::Conv2d, Op::Conv2dBackwardWeight, &params, &inputs, &y, 1);
    }
}

#[test]
fn gradients_of_poolings_are_the_differences_of_the_function() {
    for (by, x, y) in [
        (Pooling::square(2), [2, 2, 4, 6], [2, 2, 2, 3]),
        (Pooling { window: [3, 2], stride: [1, 2], padding: [1, 1] }, [1, 2, 4, 4], [1, 2, 4, 3]),
    ] {
        let params = Params::pooling(by);
        check_gradient(Op::MaxPool2d, Op::MaxPool2dBackward, &params, &[x.to_vec()], &y, 0);
        check_gradient(Op::AvgPool2d, Op::AvgPool2dBackward, &params, &[x.to_vec()], &y, 0);
    }
}

#[test]
fn the_first_of_equal_elements_gets_the_gradient_of_a_max_pooling() {
    let params = Params::pooling(Pooling::square(2));
    let dims = [vec![1, 1, 2, 6], vec![1, 1, 1, 3], vec![1, 1, 2, 6]];
    let nan = f32::NAN;
    let x = [1.0, 3.0, 0.0, -0.0, nan, 9.0, 3.0, 3.0, 0.0, 0.0, nan, nan];
    let mut dx = [7f32; 12];
    run_on(Op::MaxPool2dBackward, &params, &dims, &[&x[..], &[1.0, 2.0, 4.0]], &mut dx);
    assert_eq!(dx, [0.0, 1.0, 2.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_padding_counts_as_zeros_for_a_mean_and_takes_no_part_in_a_maximum() {
    let params = Params::pooling(Pooling { window: [1, 2], stride: [1, 2], padding: [0, 1] });
    let dims = [vec![1, 1, 1, 2], vec![1, 1, 1, 2]];
    let mut out = [0f32; 2];
    run_on(Op::AvgPool2d, &params, &dims, &[&[-4.0, -6.0]], &mut out);
    assert_eq!(out, [-2.0, -3.0]);
    run_on(Op::MaxPool2d, &params, &dims, &[&[-4.0, -6.0]], &mut out);
    assert_eq!(out, [-4.0, -6.0]);
}

#[test]
fn the_gradient_of_a_cross_entropy_is_the_difference_of_the_function() {
    let (rows, classes) = (5, 7);
    let targets = [3i64, 0, 6, 7, -1];
    let logits = numbers(rows * classes, 3);
    let dy = numbers(rows, 4);
    let dims = [vec![rows, classes], vec![rows], vec![rows]];
    let loss = |logits: &[f64]| {
        let mut out = vec![0.0; rows];
        cross_entropy(Op::CrossEntropy, &dims[..2], &[rows], logits, &targets, &[], &mut out);
        out
    };
    let mut gradient = vec![1.0; rows * classes];
    cross_entropy(Op::CrossEntropyBackward, &dims, &[rows, classes], &logits, &targets, &dy, &mut gradient);
    for place in 0..rows * classes {
        let moved = |by: f64| {
            let mut moved = logits.clone();
            moved[place] += by;
            loss(&moved).iter().zip(&dy).map(|(loss, dy)| loss * dy).sum::<f64>()
        };
        let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        assert!((gradient[place] - difference).abs() < 1e-8, "at {place}: {} and {difference}", gradient[place]);
    }
    // Targets that are no class.
    assert_eq!(loss(&logits)[3..], [0.0, 0.0]);
    assert!(gradient[3 * classes..].iter().all(|&of| of == 0.0), "{gradient:?}");
    // The exponential of the first logit would be an infinity.
    let mut out = [0f64];
    let huge = [1000.0, 0.0, -1000.0];
    cross_entropy(Op::CrossEntropy, &[vec![3], vec![]], &[], &huge, &[1], &[], &mut out);
    assert_eq!(out, [1000.0]);
}

/// Runs a cross entropy or its gradient on tensors of these sizes without gaps.
fn cross_entropy(
    op: Op,
    inputs: &[Vec<usize>],
    output: &[usize],
    logits: &[f64],
    targets: &[i64],
    dy: &[f64],
    out: &mut [f64],
) {
    let bases = [logits.as_ptr().cast::<u8>(), targets.as_ptr().cast(), dy.as_ptr().cast()];
    let operand = |base: *mut u8, dtype, dims: &[usize], access| {
        let layout = Layout::contiguous(Shape::new(dims).unwrap());
        // SAFETY: as many elements as the layout has, which outlive the launch; what is read is not written.
        unsafe { Operand::new(base, dtype, layout, access) }
    };
    let dtypes = [DType::F64, DType::I64, DType::F64];
    let mut operands: Vec<Operand> =
        (0..inputs.len()).map(|at| operand(bases[at].cast_mut(), dtypes[at], &inputs[at], Access::Read)).collect();
    operands.push(operand(out.as_mut_ptr().cast(), DType::F64, output, Access::Write));
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, DType::F64).unwrap();
    let params = Params::default();
    let mut call = KernelCall::new(kernel, &mut operands, inputs.len(), &params);
    CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap().launch(&mut call).unwrap();
}

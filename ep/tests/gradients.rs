//! Gradients of softmax and log-softmax, beside differences of the functions themselves, and what only log-softmax can.

use streamvm_ep::*;

fn run<T: Element>(op: Op, inputs: &[&[T]], out: &mut [T]) {
    let layout = Layout::contiguous(Shape::new(&[out.len()]).unwrap());
    let operand = |base: *mut T, access| {
        // SAFETY: as many elements as the layout has, which outlive the launch; what is read is not written.
        unsafe { Operand::new(base.cast(), T::DTYPE, layout, access) }
    };
    let mut operands: Vec<Operand> =
        inputs.iter().map(|input| operand(input.as_ptr().cast_mut(), Access::Read)).collect();
    operands.push(operand(out.as_mut_ptr(), Access::Write));
    let kernel = KernelRegistry::builtin().get(op, DeviceKind::Cpu, T::DTYPE).unwrap();
    let params = Params::over(Axes::new(&[0]).unwrap());
    let mut call = KernelCall { kernel, operands: &mut operands, inputs: inputs.len(), params: &params };
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

//! Results have the same bits for any number of threads: every op and dtype, on operands that are large enough to be divided.

use streamvm_ep::*;

/// Elements with every bit in use: integers of any size, and finite floats of moderate size, some of them equal.
fn fill(dtype: DType, bytes: &mut [u8]) {
    let mut state = 1u64;
    for element in bytes.chunks_exact_mut(dtype.size()) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (state >> 40) as f64 / f64::from(1 << 21) - 4.0;
        match dtype {
            DType::F32 => element.copy_from_slice(&(x as f32).to_ne_bytes()),
            DType::F64 => element.copy_from_slice(&x.to_ne_bytes()),
            DType::F16 => element.copy_from_slice(&half::f16::from_f64(x).to_ne_bytes()),
            DType::BF16 => element.copy_from_slice(&half::bf16::from_f64(x).to_ne_bytes()),
            DType::Bool => element[0] = u8::from(state >> 63 == 1),
            // Neither 0 nor negative, so that every op takes them.
            DType::I32 => element.copy_from_slice(&((state >> 60) as i32 + 1).to_ne_bytes()),
            DType::I64 => element.copy_from_slice(&((state >> 60) as i64 + 1).to_ne_bytes()),
            DType::U8 => element[0] = (state >> 60) as u8 + 1,
        }
    }
}

/// Memory aligned for every dtype.
fn memory(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8)]
}

fn bytes(memory: &mut [u64]) -> &mut [u8] {
    // SAFETY: the bytes of initialised numbers, borrowed as long as these.
    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), size_of_val(memory)) }
}

/// The bytes of the result of an op on contiguous inputs of these shapes.
fn run(op: Op, dtype: DType, shapes: &[&[usize]], params: &Params, threads: usize) -> Vec<u8> {
    let dtypes = |input: usize| if op == Op::Where && input == 0 { DType::Bool } else { dtype };
    let layouts: Vec<Layout> = shapes.iter().map(|dims| Layout::contiguous(Shape::new(dims).unwrap())).collect();
    let given: Vec<(DType, &Shape)> =
        layouts.iter().enumerate().map(|(i, layout)| (dtypes(i), layout.shape())).collect();
    let (out_dtype, out_shape) = infer(op, &given, params).unwrap_or_else(|error| panic!("{op} of {dtype}: {error}"));
    let mut inputs: Vec<Vec<u64>> = layouts.iter().map(|layout| memory(layout.elements() * 8)).collect();
    let mut operands = Vec::new();
    for (i, (layout, input)) in layouts.iter().zip(&mut inputs).enumerate() {
        fill(dtypes(i), bytes(input));
        // SAFETY: the memory holds as many elements, is aligned, outlives the launch, and is only read.
        operands.push(unsafe { Operand::new(input.as_mut_ptr().cast(), dtypes(i), *layout, Access::Read) });
    }
    let out_layout = Layout::contiguous(out_shape);
    let mut out = memory(out_layout.elements() * out_dtype.size());
    // SAFETY: as above; nothing else uses it.
    operands.push(unsafe { Operand::new(out.as_mut_ptr().cast(), out_dtype, out_layout, Access::Write) });
    let kernel = KernelRegistry::builtin().get(op, DeviceKind::Cpu, dtype).unwrap();
    let device = CpuDevice::new(0, CpuConfig { threads: Some(threads), ..CpuConfig::default() });
    let inputs = shapes.len();
    let mut call = KernelCall { kernel, operands: &mut operands, inputs, params };
    device.create_stream().unwrap().launch(&mut call).unwrap_or_else(|error| panic!("{op} of {dtype}: {error}"));
    bytes(&mut out).to_vec()
}

/// Shapes of inputs, and parameters, that are large enough for the ways in which a kernel of this op is divided. Operands are contiguous.
fn cases(op: Op, dtype: DType) -> Vec<(Vec<&'static [usize]>, Params)> {
    let over = |axes: &[usize]| Params::over(Axes::new(axes).unwrap());
    match op {
        Op::MatMul => vec![
            (vec![&[70, 90], &[90, 300]], Params::default()),
            (vec![&[300, 90], &[90, 7]], Params::default()),
            (vec![&[130, 600], &[600, 130]], Params::default()),
            (vec![&[12, 40, 60], &[12, 60, 50]], Params::default()),
        ],
        Op::Sum | Op::Mean | Op::ReduceMax | Op::ReduceMin => vec![
            (vec![&[300, 400]], over(&[1])),
            (vec![&[400, 300]], over(&[0])),
            (vec![&[200_001]], over(&[0])),
            (vec![&[3, 70_000]], over(&[1])),
        ],
        Op::ArgMax => {
            vec![(vec![&[300, 400]], over(&[1])), (vec![&[400, 300]], over(&[0])), (vec![&[200_001]], over(&[0]))]
        }
        Op::Softmax | Op::LogSoftmax => vec![(vec![&[300, 130]], over(&[1])), (vec![&[130, 300]], over(&[0]))],
        Op::SoftmaxBackward | Op::LogSoftmaxBackward => vec![(vec![&[300, 130], &[300, 130]], over(&[1]))],
        Op::Cast => DType::ALL.into_iter().map(|to| (vec![&[100_003][..]], Params::to(to))).collect(),
        Op::OneHot => vec![(vec![&[30_001]], Params::one_hot(17, DType::F32))],
        Op::Pad => vec![(vec![&[300, 400]], Params::pad(Axes::new(&[1]).unwrap(), 1, 2, Scalar::zero(dtype)))],
        Op::Uniform | Op::Normal => Vec::new(),
        _ => {
            let whole = vec![&[100_003][..]; op.arity()];
            let mut broadcast = vec![&[300, 400][..]; op.arity()];
            if let Some(last) = broadcast.last_mut() {
                *last = if op.arity() > 1 { &[400] } else { *last };
            }
            vec![(whole, Params::default()), (broadcast, Params::default())]
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for op in Op::ALL {
        for dtype in KernelRegistry::builtin().dtypes(op, DeviceKind::Cpu) {
            for (shapes, params) in cases(op, dtype) {
                let alone = run(op, dtype, &shapes, &params, 1);
                for threads in [2, 4] {
                    let found = run(op, dtype, &shapes, &params, threads);
                    assert!(found == alone, "{op} of {dtype}, {shapes:?}: {threads} threads give other bits than 1");
                }
            }
        }
    }
}

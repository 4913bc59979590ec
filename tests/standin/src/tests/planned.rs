//! Launches that streamvm plans and the stand-in decodes: each must give the same result as on the CPU.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_cuda::{Launch, plan, plan_copy, plan_fill};
use streamvm_ep::{
    Access, Axes, Convolution, DType, Device, DeviceKind, Element, KernelCall, Layout, Op, Operand, Params, Pooling,
    Scalar, Shape,
};

use super::bench::Bench;

/// Bytes of each tensor's storage: more than any view here reaches.
const ROOM: usize = 512;

/// One operand: the bytes of its storage, and the view of it.
struct Tensor {
    bytes: Vec<u8>,
    dtype: DType,
    layout: Layout,
}

fn dense(dims: &[usize]) -> Layout {
    Layout::contiguous(Shape::new(dims).unwrap())
}

/// A tensor of small numbers of both signs, none of them 0, so that every op accepts them.
fn tensor(dtype: DType, layout: Layout) -> Tensor {
    let numbers = (0..ROOM as i64 / 8).map(|at| [3, 1, 2, 5, 1, 4][at as usize % 6]);
    let bytes = match (dtype.is_float(), dtype.size()) {
        (true, 4) => f32::as_bytes(&numbers.map(|number| number as f32 - 2.5).collect::<Vec<_>>()).to_vec(),
        (true, 8) => f64::as_bytes(&numbers.map(|number| number as f64 - 2.5).collect::<Vec<_>>()).to_vec(),
        // Bits of half-precision numbers that are neither 0 nor infinite.
        (true, _) => numbers.flat_map(|number| if number & 1 == 0 { [0, 0x3C] } else { [0, 0x40] }).collect(),
        (false, 4) => i32::as_bytes(&numbers.map(|number| number as i32).collect::<Vec<_>>()).to_vec(),
        (false, 8) => i64::as_bytes(&numbers.collect::<Vec<_>>()).to_vec(),
        (false, _) if dtype == DType::Bool => numbers.map(|number| (number & 1) as u8).collect(),
        (false, _) => numbers.map(|number| number as u8).collect(),
    };
    let mut padded = bytes;
    padded.resize(ROOM, 0);
    Tensor { bytes: padded, dtype, layout }
}

/// The bytes of each storage after the call: on the CPU, and on the device.
fn both(
    bench: &Bench,
    tensors: &mut [Tensor],
    on_cpu: impl FnOnce(&mut [Operand<'static>]),
    planned: impl FnOnce(&mut [Operand<'static>]) -> Option<Launch>,
) {
    let stream = bench.stream();
    let addresses: Vec<u64> = tensors.iter().map(|tensor| bench.written(&tensor.bytes, stream)).collect();
    let outputs = tensors.len() - 1;
    let operands = |bases: &[*mut u8]| -> Vec<Operand<'static>> {
        let one = |(at, (tensor, &base)): (usize, (&Tensor, &*mut u8))| {
            let access = if at == outputs { Access::Write } else { Access::Read };
            // SAFETY: each view lies within its storage; device addresses are never dereferenced.
            unsafe { Operand::new(base, tensor.dtype, tensor.layout, access) }
        };
        tensors.iter().zip(bases).enumerate().map(one).collect()
    };
    let there: Vec<*mut u8> = addresses.iter().map(|&at| std::ptr::without_provenance_mut(at as usize)).collect();
    if let Some(launch) = planned(&mut operands(&there)) {
        let name = launch.kernel.to_string();
        let function = bench.function(bench.module(&[&name]).unwrap(), &name).unwrap();
        bench.launch(function, stream, &launch.arguments).unwrap();
    }
    // Storage that is aligned for every dtype.
    let mut storages: Vec<Vec<u64>> = tensors
        .iter()
        .map(|tensor| tensor.bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect())
        .collect();
    let here: Vec<*mut u8> = storages.iter_mut().map(|storage| storage.as_mut_ptr().cast()).collect();
    on_cpu(&mut operands(&here));
    for (storage, address) in storages.iter().zip(addresses) {
        let expected: Vec<u8> = storage.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bench.read(address, ROOM, stream), expected);
    }
}

fn op(bench: &Bench, op: Op, dtype: DType, inputs: &[Layout], output: Layout, params: Params) {
    let of = |at: usize| match (op, at) {
        (Op::Where, 0) => DType::Bool,
        (Op::IndexSelect | Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd, 1) => DType::U8,
        (Op::CrossEntropy | Op::CrossEntropyBackward, 1) => DType::I64,
        _ => dtype,
    };
    let output_dtype = match op {
        Op::Cast | Op::OneHot => params.to.unwrap(),
        Op::ArgMax | Op::ArgMin | Op::ArgSort | Op::ArgTopK => DType::I64,
        _ => op.elementwise_output(dtype),
    };
    let mut tensors: Vec<Tensor> = inputs.iter().enumerate().map(|(at, layout)| tensor(of(at), *layout)).collect();
    tensors.push(tensor(output_dtype, output));
    let kernels = streamvm_kernels::builtin();
    let kernel = kernels.get(op, DeviceKind::Cpu, dtype).unwrap();
    let call = |operands: &mut [Operand<'static>]| {
        let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap();
        stream.launch(&mut KernelCall { kernel, operands, inputs: inputs.len(), params: &params }).unwrap();
    };
    let planned = |operands: &mut [Operand<'static>]| {
        plan(&KernelCall { kernel, operands, inputs: inputs.len(), params: &params }).unwrap()
    };
    both(bench, &mut tensors, call, planned);
}

#[test]
fn elementwise_calls_of_every_op_and_dtype_through_views() {
    let bench = Bench::new("delay=0");
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    let row = dense(&[4]);
    for of in Op::ALL.into_iter().filter(|op| op.is_elementwise()) {
        for dtype in DType::ALL.into_iter().filter(|&dtype| of.supports(dtype)) {
            let inputs = [turned, row, dense(&[3, 1])];
            let params = if of == Op::Cast { Params::to(DType::F64) } else { Params::default() };
            op(&bench, of, dtype, &inputs[..of.arity()], dense(&[3, 4]), params);
        }
    }
}

#[test]
fn reductions_over_any_axes() {
    let bench = Bench::new("delay=0");
    let all = dense(&[2, 3, 4]);
    for of in [Op::Sum, Op::ReduceMax, Op::ReduceMin] {
        for (axes, output) in
            [(&[2usize][..], dense(&[2, 3])), (&[0], dense(&[3, 4])), (&[0, 2], dense(&[3])), (&[0, 1, 2], dense(&[]))]
        {
            let over = Params::over(Axes::new(axes).unwrap());
            op(&bench, of, DType::I32, &[all], output, over);
            op(&bench, of, DType::F32, &[all.permute(&[0, 1, 2]).unwrap()], output, over);
        }
        // A reduction over one axis of size 1, which the plan drops.
        op(&bench, of, DType::I32, &[dense(&[3, 1])], dense(&[3]), Params::over(Axes::new(&[1]).unwrap()));
    }
    let first = Params::over(Axes::new(&[1]).unwrap());
    op(&bench, Op::ArgMax, DType::F64, &[all], dense(&[2, 4]), first);
    op(&bench, Op::ArgMin, DType::F64, &[all], dense(&[2, 4]), first);
    op(&bench, Op::Mean, DType::F64, &[all], dense(&[2, 4]), first);
    let moved = dense(&[3, 4, 2]).permute(&[2, 0, 1]).unwrap();
    op(&bench, Op::Softmax, DType::F32, &[all], all, first);
    op(&bench, Op::LogSoftmax, DType::F32, &[all], moved, first);
    op(&bench, Op::SoftmaxBackward, DType::F64, &[all, moved], all, first);
    op(&bench, Op::LogSoftmaxBackward, DType::F32, &[moved, all], all, first);
    op(
        &bench,
        Op::Softmax,
        DType::F64,
        &[all],
        all.permute(&[0, 1, 2]).unwrap(),
        Params::over(Axes::new(&[2]).unwrap()),
    );
    op(&bench, Op::Sum, DType::I64, &[dense(&[3, 0])], dense(&[3]), first);
}

#[test]
fn products_of_batches() {
    let bench = Bench::new("delay=0");
    let none = Params::default();
    op(&bench, Op::MatMul, DType::F32, &[dense(&[2, 3]), dense(&[3, 4])], dense(&[2, 4]), none);
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    op(&bench, Op::MatMul, DType::I64, &[dense(&[2, 2, 3]), turned], dense(&[2, 2, 4]), none);
    op(&bench, Op::MatMul, DType::F64, &[dense(&[1, 3]), dense(&[3, 1])], dense(&[1, 1]), none);
}

#[test]
fn pads_and_one_hots_of_every_size() {
    let bench = Bench::new("delay=0");
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    for dtype in DType::ALL {
        let value = Scalar::one(dtype);
        let columns = Params::pad(Axes::new(&[1]).unwrap(), 2, 1, value);
        op(&bench, Op::Pad, dtype, &[turned], dense(&[3, 7]), columns);
        op(&bench, Op::Pad, dtype, &[dense(&[2, 2])], dense(&[5, 5]), Params::pad(Axes::NONE, 0, 3, value));
        op(&bench, Op::Pad, dtype, &[dense(&[0, 2])], dense(&[1, 3]), Params::pad(Axes::NONE, 1, 0, value));
        for from in [DType::I32, DType::I64, DType::U8] {
            let output = dense(&[4, 3, 3]).permute(&[2, 1, 0]).unwrap();
            op(&bench, Op::OneHot, from, &[dense(&[3, 3])], output, Params::one_hot(4, dtype));
        }
    }
}

#[test]
fn rows_that_are_normalised_or_selected() {
    let bench = Bench::new("delay=0");
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    for dtype in DType::ALL.into_iter().filter(|&dtype| Op::LayerNorm.supports(dtype)) {
        let row = Layout::with_strides(Shape::new(&[4]).unwrap(), &[2], 0).unwrap();
        op(&bench, Op::LayerNorm, dtype, &[turned, row, dense(&[4])], dense(&[3, 4]), Params::epsilon(1e-5));
        op(&bench, Op::LayerNorm, dtype, &[dense(&[5]); 3], dense(&[5]), Params::epsilon(0.5));
        op(&bench, Op::RmsNorm, dtype, &[turned, row], dense(&[3, 4]), Params::epsilon(1e-5));
    }
    for dtype in DType::ALL.into_iter().filter(|&dtype| Op::CrossEntropy.supports(dtype)) {
        let (logits, column) = (dense(&[4, 3]).permute(&[1, 0]).unwrap(), dense(&[3, 2]).slice(1, 1..2).unwrap());
        let row = column.squeeze(1).unwrap();
        op(&bench, Op::CrossEntropy, dtype, &[logits, dense(&[3])], row, Params::default());
        op(&bench, Op::CrossEntropyBackward, dtype, &[logits, row, dense(&[3])], logits, Params::default());
        op(&bench, Op::CrossEntropy, dtype, &[dense(&[5]), dense(&[])], dense(&[]), Params::default());
    }
    for dtype in DType::ALL {
        // Numbers of `tensor` are at most 5.
        let output = dense(&[3, 2, 2]).permute(&[2, 1, 0]).unwrap();
        op(&bench, Op::IndexSelect, dtype, &[dense(&[6, 3]), dense(&[2, 2])], output, Params::default());
    }
}

#[test]
fn elements_at_other_places_and_running_sums() {
    let bench = Bench::new("delay=0");
    let over = |axes: &[usize]| Params::over(Axes::new(axes).unwrap());
    let (turned, whole) = (dense(&[4, 3]).permute(&[1, 0]).unwrap(), dense(&[3, 4]));
    for dtype in DType::ALL {
        for axes in [&[][..], &[0], &[1], &[0, 1]] {
            op(&bench, Op::Flip, dtype, &[turned], whole, over(axes));
            op(&bench, Op::Flip, dtype, &[whole], whole, over(axes));
        }
        op(&bench, Op::Flip, dtype, &[dense(&[3, 1])], dense(&[3, 1]), over(&[1]));
        for of in [Op::Tril, Op::Triu] {
            op(&bench, of, dtype, &[turned], whole, Params::diagonal(-1));
            let batch = dense(&[2, 3, 4]).permute(&[0, 2, 1]).unwrap();
            op(&bench, of, dtype, &[batch], dense(&[2, 4, 3]), Params::diagonal(1));
        }
        // Numbers of `tensor` are at most 5.
        op(&bench, Op::TakeAlongAxis, dtype, &[dense(&[6, 2]), dense(&[3, 2])], dense(&[3, 2]), over(&[0]));
        let put = [dense(&[2, 6, 2]), dense(&[2, 7, 2]), dense(&[2, 7, 2])];
        op(&bench, Op::Scatter, dtype, &put, dense(&[2, 6, 2]), over(&[1]));
        for reversed in [false, true] {
            let first = Axes::new(&[0]).unwrap();
            op(&bench, Op::ArgSort, dtype, &[turned], whole, Params::sorted(first, reversed));
            op(&bench, Op::ArgTopK, dtype, &[dense(&[5, 2])], dense(&[3, 2]), Params::top(first, 3, reversed));
        }
        if Op::CumSum.supports(dtype) {
            op(&bench, Op::CumSum, dtype, &[turned], whole, over(&[0]));
            op(&bench, Op::CumSum, dtype, &[dense(&[5])], dense(&[5]), over(&[0]));
            op(&bench, Op::ScatterAdd, dtype, &put, dense(&[2, 6, 2]), over(&[1]));
        }
    }
}

#[test]
fn convolutions_and_poolings_of_any_layout() {
    let bench = Bench::new("delay=0");
    let by = Convolution { stride: [1, 2], padding: [0, 1], dilation: [2, 1], groups: 2 };
    let (x, weight, y) =
        (dense(&[4, 1, 2, 4]).permute(&[1, 2, 0, 3]).unwrap(), dense(&[4, 1, 2, 3]), dense(&[1, 4, 2, 2]));
    let convolution = Params::convolution(by);
    let pooling = Params::pooling(Pooling { window: [2, 3], stride: [1, 2], padding: [0, 1] });
    let pooled = dense(&[2, 1, 3, 2]).permute(&[1, 0, 2, 3]).unwrap();
    for dtype in DType::ALL.into_iter().filter(|&dtype| Op::Conv2d.supports(dtype)) {
        op(&bench, Op::Conv2d, dtype, &[x, weight], y, convolution);
        op(&bench, Op::Conv2dBackwardInput, dtype, &[x, weight, y], x, convolution);
        op(&bench, Op::Conv2dBackwardWeight, dtype, &[x, weight, y], weight, convolution);
        for forward in [Op::MaxPool2d, Op::AvgPool2d] {
            op(&bench, forward, dtype, &[x], pooled, pooling);
        }
        for backward in [Op::MaxPool2dBackward, Op::AvgPool2dBackward] {
            op(&bench, backward, dtype, &[x, pooled], x, pooling);
        }
    }
}

#[test]
fn random_numbers_of_any_layout() {
    let bench = Bench::new("delay=0");
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    for of in [Op::Uniform, Op::Normal] {
        for dtype in DType::ALL.into_iter().filter(|&dtype| of.supports(dtype)) {
            op(&bench, of, dtype, &[], turned, Params::random(1 << 40, 3));
            op(&bench, of, dtype, &[], dense(&[3, 8]).slice(1, 2..6).unwrap(), Params::random(5, u64::MAX));
        }
    }
}

#[test]
fn sequences_of_any_layout() {
    let bench = Bench::new("delay=0");
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    for &dtype in Op::Arange.dtypes() {
        let params = if dtype.is_float() { Params::floats(-0.5, 0.3) } else { Params::integers(250, -7) };
        op(&bench, Op::Arange, dtype, &[], turned, params);
        op(&bench, Op::Arange, dtype, &[], dense(&[3, 8]).slice(1, 2..6).unwrap(), params);
    }
}

#[test]
fn copies_and_fills_of_every_size() {
    let bench = Bench::new("delay=0");
    let turned = dense(&[4, 3]).permute(&[1, 0]).unwrap();
    let column = dense(&[3, 8]).slice(1, 2..6).unwrap();
    for dtype in DType::ALL {
        let mut tensors = [tensor(dtype, turned), tensor(dtype, column)];
        let on_cpu = |operands: &mut [Operand<'static>]| {
            let [source, target] = operands else { unreachable!("two operands") };
            CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap().copy(source, target).unwrap();
        };
        both(&bench, &mut tensors, on_cpu, |operands| plan_copy(&operands[0], &operands[1]));
        let value = if dtype == DType::Bool { Scalar::Bool(true) } else { Scalar::I64(7) };
        let on_cpu = |operands: &mut [Operand<'static>]| {
            CpuDevice::new(0, CpuConfig::default()).create_stream().unwrap().fill(&mut operands[0], value).unwrap();
        };
        both(&bench, &mut [tensor(dtype, column)], on_cpu, |operands| plan_fill(&operands[0], value).unwrap());
    }
}

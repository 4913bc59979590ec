//! Results have the same bits for any number of threads: every op and dtype, on operands that are large enough to be divided, and that are
//! contiguous, strided, with gaps, transposed or repeated; and so do copies and fills.

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

use crate::cases::cases as drawn;

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
            DType::I8 | DType::U8 => element[0] = (state >> 60) as u8 + 1,
            DType::I16 | DType::U16 => element.copy_from_slice(&((state >> 60) as u16 + 1).to_ne_bytes()),
            DType::I32 | DType::U32 => element.copy_from_slice(&((state >> 60) as u32 + 1).to_ne_bytes()),
            DType::I64 | DType::U64 => element.copy_from_slice(&((state >> 60) + 1).to_ne_bytes()),
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

/// Where the elements of an operand lie.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Form {
    Contiguous,
    /// Every third element of the storage.
    Strided,
    /// Rows with five elements between them.
    Gaps,
    /// The first axis is innermost in memory.
    Transposed,
    /// One index of the first axis, or of the last, stands for all: only for inputs.
    FirstRepeated,
    LastRepeated,
}

/// The forms of the inputs, and of the output. Of several inputs, each has the form after that of the one before where a pair has two.
const FORMS: [([Form; 2], Form); 11] = [
    ([Form::Contiguous; 2], Form::Contiguous),
    ([Form::Strided; 2], Form::Contiguous),
    ([Form::Gaps; 2], Form::Gaps),
    ([Form::Transposed; 2], Form::Contiguous),
    ([Form::Transposed; 2], Form::Transposed),
    ([Form::FirstRepeated; 2], Form::Contiguous),
    ([Form::LastRepeated; 2], Form::Contiguous),
    ([Form::Contiguous; 2], Form::Transposed),
    ([Form::Contiguous; 2], Form::Strided),
    ([Form::Contiguous, Form::Transposed], Form::Contiguous),
    ([Form::LastRepeated, Form::Contiguous], Form::Gaps),
];

impl Form {
    fn layout(self, dims: &[usize]) -> Layout {
        let mut strides = vec![0; dims.len()];
        let mut next = if self == Form::Strided { 3 } else { 1 };
        let innermost_first: Vec<usize> = match self {
            Form::Transposed => (0..dims.len()).collect(),
            _ => (0..dims.len()).rev().collect(),
        };
        for (place, &axis) in innermost_first.iter().enumerate() {
            let repeated = match self {
                Form::FirstRepeated => axis == 0,
                Form::LastRepeated => axis + 1 == dims.len(),
                _ => false,
            };
            if !repeated {
                strides[axis] = next;
                next = next * dims[axis] + if self == Form::Gaps && place == 0 { 5 } else { 0 };
            }
        }
        Layout::with_strides(Shape::new(dims).unwrap(), &strides, 0).unwrap()
    }
}

/// A view of memory of its own.
struct View {
    dtype: DType,
    layout: Layout,
    memory: Vec<u64>,
}

impl View {
    /// Filled, for reading.
    fn filled(dtype: DType, layout: Layout) -> View {
        let mut view = View::zeroed(dtype, layout);
        fill(dtype, bytes(&mut view.memory));
        view
    }

    fn zeroed(dtype: DType, layout: Layout) -> View {
        View { dtype, layout, memory: memory(layout.span_elements().end * dtype.size()) }
    }

    fn operand(&mut self, access: Access) -> Operand<'static> {
        // SAFETY: the memory holds the span of the layout, is aligned, and outlives the launch; nothing else uses it meanwhile.
        unsafe { Operand::new(self.memory.as_mut_ptr().cast(), self.dtype, self.layout, access) }
    }
}

/// A stream whose kernels use this many threads.
fn stream(threads: usize) -> Box<dyn Stream> {
    CpuDevice::new(0, CpuConfig { threads: Some(threads), ..CpuConfig::default() }).create_stream().unwrap()
}

/// Calls `run` with a stream of 1, 2 and 4 threads and a fresh output, and compares all the memory of the output.
fn compare(dtype: DType, layout: Layout, what: &str, mut run: impl FnMut(&mut dyn Stream, Operand<'static>)) {
    let mut written = [1, 2, 4].map(|threads| {
        let mut out = View::zeroed(dtype, layout);
        let operand = out.operand(Access::Write);
        run(&mut *stream(threads), operand);
        out.memory
    });
    let [alone, others @ ..] = &mut written;
    for (found, threads) in others.iter().zip([2, 4]) {
        assert!(found == alone, "{what}: {threads} threads give other bits than 1");
    }
}

/// An op on inputs of these shapes and forms.
fn check_op(op: Op, dtype: DType, shapes: &[&[usize]], params: &Params, forms: ([Form; 2], Form)) {
    let what = format!("{op} of {dtype}, {shapes:?}, {forms:?}");
    let (ins, to) = forms;
    let mut inputs: Vec<View> = Vec::new();
    for (input, dims) in shapes.iter().enumerate() {
        let dtype = match (op, input) {
            (Op::Where, 0) => DType::Bool,
            (Op::IndexSelect | Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd, 1) => DType::I32,
            (Op::CrossEntropy | Op::CrossEntropyBackward, 1) => DType::I64,
            _ => dtype,
        };
        inputs.push(View::filled(dtype, ins[input % 2].layout(dims)));
    }
    let (out_dtype, out_shape) = if op.arity() == 0 {
        (dtype, Shape::new(&[300, 400]).unwrap())
    } else {
        let given: Vec<(DType, &Shape)> = inputs.iter().map(|view| (view.dtype, view.layout.shape())).collect();
        infer(op, &given, params).unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    let kernel = streamvm_kernels::builtin().get(op, DeviceKind::CPU, dtype).unwrap();
    compare(out_dtype, to.layout(out_shape.dims()), &what, |stream, out| {
        let mut operands: Vec<Operand> = inputs.iter_mut().map(|view| view.operand(Access::Read)).collect();
        operands.push(out);
        let mut call = KernelCall::new(kernel, &mut operands, shapes.len(), params);
        stream.launch(&mut call).unwrap_or_else(|error| panic!("{what}: {error}"));
    });
}

/// Shapes of inputs, and parameters, that are large enough for the ways in which a kernel of this op is divided.
fn cases(op: Op, dtype: DType) -> Vec<(Vec<&'static [usize]>, Params)> {
    let over = |axes: &[usize]| Params::over(Axes::new(axes).unwrap());
    match op {
        Op::MatMul => vec![
            (vec![&[70, 90], &[90, 300]], Params::default()),
            (vec![&[300, 90], &[90, 7]], Params::default()),
            (vec![&[130, 600], &[600, 130]], Params::default()),
            (vec![&[12, 40, 60], &[12, 60, 50]], Params::default()),
        ],
        _ if op.class() == OpClass::Reduction => vec![
            (vec![&[300, 400]], over(&[1])),
            (vec![&[400, 300]], over(&[0])),
            (vec![&[200_001]], over(&[0])),
            (vec![&[3, 70_000]], over(&[1])),
        ],
        Op::ArgMax | Op::ArgMin => {
            vec![(vec![&[300, 400]], over(&[1])), (vec![&[400, 300]], over(&[0])), (vec![&[200_001]], over(&[0]))]
        }
        Op::Softmax | Op::LogSoftmax => vec![(vec![&[300, 130]], over(&[1])), (vec![&[130, 300]], over(&[0]))],
        Op::SoftmaxBackward | Op::LogSoftmaxBackward => vec![(vec![&[300, 130], &[300, 130]], over(&[1]))],
        Op::Cast => DType::ALL.into_iter().map(|to| (vec![&[100_003][..]], Params::to(to))).collect(),
        Op::RmsNorm => vec![(vec![&[300, 400], &[400]], Params::epsilon(1e-5))],
        Op::LayerNorm => vec![(vec![&[300, 400], &[400], &[400]], Params::epsilon(1e-5))],
        // Indices are at most 16.
        Op::IndexSelect => {
            vec![(vec![&[40, 300], &[301]], Params::default()), (vec![&[17, 3], &[200, 120]], Params::default())]
        }
        Op::CrossEntropy => vec![(vec![&[3000, 30], &[3000]], Params::default())],
        Op::CrossEntropyBackward => vec![(vec![&[3000, 30], &[3000], &[3000]], Params::default())],
        Op::Conv2d => {
            let by = Convolution { padding: [1, 1], ..Convolution::default() };
            let two = Convolution { stride: [2, 1], groups: 2, ..by };
            vec![
                (vec![&[5, 8, 20, 30], &[24, 8, 3, 3]], Params::convolution(by)),
                (vec![&[3, 6, 40, 50], &[12, 3, 3, 3]], Params::convolution(two)),
                // Two strips of columns.
                (
                    vec![&[2, 16, 44, 131], &[30, 16, 2, 3]],
                    Params::convolution(Convolution { dilation: [40, 1], ..by }),
                ),
            ]
        }
        Op::Conv2dBackwardInput | Op::Conv2dBackwardWeight => {
            let by = Convolution { padding: [1, 1], ..Convolution::default() };
            let two = Convolution { stride: [2, 1], groups: 2, ..by };
            vec![
                (vec![&[5, 40, 20, 30], &[8, 40, 3, 3], &[5, 8, 20, 30]], Params::convolution(by)),
                (vec![&[3, 6, 40, 50], &[12, 3, 3, 3], &[3, 12, 20, 50]], Params::convolution(two)),
            ]
        }
        Op::MaxPool2d | Op::AvgPool2d => {
            let by = Pooling { stride: [1, 2], ..Pooling::square(3) };
            vec![(vec![&[6, 8, 40, 41]], Params::pooling(by))]
        }
        Op::MaxPool2dBackward | Op::AvgPool2dBackward => {
            let by = Pooling { stride: [1, 2], ..Pooling::square(3) };
            vec![(vec![&[6, 8, 40, 41], &[6, 8, 38, 20]], Params::pooling(by))]
        }
        Op::OneHot => vec![(vec![&[30_001]], Params::one_hot(17, DType::F32))],
        Op::Pad => vec![(vec![&[300, 400]], Params::pad(Axes::new(&[1]).unwrap(), 1, 2, Scalar::zero(dtype)))],
        Op::Flip => vec![(vec![&[300, 400]], over(&[1])), (vec![&[100_003]], over(&[]))],
        Op::Tril | Op::Triu => {
            vec![(vec![&[300, 400]], Params::diagonal(20)), (vec![&[400, 20, 20]], Params::diagonal(0))]
        }
        Op::CumSum => vec![(vec![&[300, 400]], over(&[1])), (vec![&[300, 400]], over(&[0]))],
        Op::ArgSort | Op::ArgTopK => {
            // Rows that are sorted side by side, and one row that is sorted in pieces. Keys of a few values take places from each piece.
            let shapes: [(&[usize], &[usize]); 3] = [(&[300, 400], &[1]), (&[300, 400], &[0]), (&[200_001], &[0])];
            let params = |axes: &[usize], size: usize| match op {
                Op::ArgSort => Params::sorted(Axes::new(axes).unwrap(), size.is_multiple_of(2)),
                _ => Params::top(Axes::new(axes).unwrap(), size / 2, size.is_multiple_of(2)),
            };
            shapes.into_iter().map(|(dims, axes)| (vec![dims], params(axes, dims[axes[0]]))).collect()
        }
        Op::TakeAlongAxis => vec![(vec![&[300, 40], &[300, 401]], over(&[1]))],
        Op::Scatter | Op::ScatterAdd => {
            vec![
                (vec![&[300, 40], &[300, 401], &[300, 401]], over(&[1])),
                (vec![&[40, 300], &[401, 300], &[401, 300]], over(&[0])),
            ]
        }
        Op::Arange if dtype.is_float() => vec![(Vec::new(), Params::floats(0.1, 0.7))],
        Op::Arange => vec![(Vec::new(), Params::integers(-3, 7))],
        Op::Uniform | Op::Normal => vec![(Vec::new(), Params::random(7, 11))],
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
    // Each call with a part of the forms, the next call with the next ones.
    let part = FORMS.len().min(drawn(2) as usize);
    let mut forms = FORMS.into_iter().cycle();
    for op in Op::ALL {
        for dtype in streamvm_kernels::builtin().dtypes(op, DeviceKind::CPU) {
            for (shapes, params) in cases(op, dtype) {
                for forms in forms.by_ref().take(part) {
                    check_op(op, dtype, &shapes, &params, forms);
                }
            }
        }
    }
}

#[test]
fn copies_and_fills_do_not_depend_on_the_number_of_threads() {
    for dtype in DType::ALL {
        for dims in [&[100_003][..], &[300, 400], &[30, 20, 200]] {
            for ([from, _], to) in FORMS {
                let mut source = View::filled(dtype, from.layout(dims));
                let layout = to.layout(dims);
                let what = format!("a copy of {dtype}, {dims:?}, from {from:?} to {to:?}");
                compare(dtype, layout, &what, |stream, mut out| {
                    stream.copy(&source.operand(Access::Read), &mut out).unwrap();
                });
                let what = format!("a fill of {dtype}, {dims:?}, {to:?}");
                let one = if dtype == DType::Bool { Scalar::Bool(true) } else { Scalar::I64(1) };
                compare(dtype, layout, &what, |stream, mut out| stream.fill(&mut out, one).unwrap());
            }
        }
    }
}

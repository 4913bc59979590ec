//! The cases: an op on operands of one size, `f32` where nothing else is said. The drivers of other libraries know them by name.

use streamvm_ep::{Axes, Convolution, DType, Op, Params, Pooling};

use crate::{composed, fused, model};

/// The names of all cases.
pub(crate) const NAMES: [&str; 54] = [
    "matmul_128x384x384",
    "matmul_128x384x1536",
    "matmul_1024x1024x1024",
    "matmul_12x128x32x128",
    "softmax_12x128x128",
    "log_softmax_12x128x128",
    "exp_1e5",
    "exp_1e7",
    "tanh_1e5",
    "tanh_1e7",
    "log_1e5",
    "log_1e7",
    "sigmoid_1e5",
    "sigmoid_1e7",
    "exp_f64_1e5",
    "tanh_f64_1e5",
    "argmax_128x384",
    "argmax_1e7",
    "cast_f16_1e5",
    "cast_f16_1e7",
    "cast_from_f16_1e5",
    "cast_from_f16_1e7",
    "sum_128x384",
    "sum_1e7",
    "add_1e3",
    "add_1e5",
    "add_1e7",
    "bias_128x384",
    "permuted_copy_128x12x32",
    "transposed_copy_1000x1000",
    "relu_1e5",
    "relu_1e7",
    // The convolutions of examples/train_conv.rs, and one of ResNet's.
    "conv2d_32x1x8x8_16x3x3",
    "conv2d_32x16x4x4_32x3x3",
    "conv2d_1x64x56x56_64x3x3",
    "conv2d_8x64x56x56_64x3x3",
    "conv1d_8x64x1000_64x3",
    "max_pool2d_8x64x56x56_2x2",
    "avg_pool2d_8x64x56x56_2x2",
    "cross_entropy_1024x1000",
    "rms_norm_1024x1024",
    "cumsum_1e6",
    "sort_1e6",
    "topk_10_of_1e6",
    "attention_12x128x64",
    "fused_products_1e6",
    "unfused_products_1e6",
    "fused_others_1e6",
    "unfused_others_1e6",
    "bert_layer_1",
    "bert_layer_8",
    "minilm_1",
    "minilm_8",
    "minilm_32",
];

/// The difference that two libraries may have in the compared element of sums of products and of functions, relative to that element. The libraries
/// add up in different orders, and 576 products of numbers up to 4 in single precision lose a thousandth of a sum that happens to be small.
const RELATIVE: f64 = 1e-3;

/// The same difference for an element that is nearly 0. It is far below every element that is compared, so that 0 is found.
const ABSOLUTE: f64 = 1e-9;

/// The largest difference that a library may have to `expected` in the compared element of the case with this name: none where elements are
/// chosen or moved, or rounded once.
pub(crate) fn tolerance(name: &str, expected: f64) -> f64 {
    if model::batch_of(name).is_some() {
        return model::TOLERANCE;
    }
    let is_exact = match (find(name).map(|case| case.call), composed::Call::of(name)) {
        _ if fused::Steps::of(name).is_some() => true,
        (Some(Call::Permuted(_)), _) | (_, Some(composed::Call::Sort | composed::Call::TopK)) => true,
        (Some(Call::Op(op, _)), _) => matches!(op, Op::Add | Op::ArgMax | Op::Cast | Op::MaxPool2d | Op::Relu),
        _ => false,
    };
    if is_exact { 0.0 } else { RELATIVE * expected.abs() + ABSOLUTE }
}

/// The call that a case measures.
#[derive(Copy, Clone)]
pub(crate) enum Call {
    /// A kernel.
    Op(Op, Params),
    /// A copy from a view of the input whose axes are in this order.
    Permuted(&'static [usize]),
}

/// A case: what is called, and the dtypes and shapes of the inputs and of the output.
pub(crate) struct Case {
    pub(crate) call: Call,
    pub(crate) inputs: Vec<(DType, Vec<usize>)>,
    pub(crate) out: (DType, Vec<usize>),
}

/// The case with this name, if it is a single op. The others are [made of several ops](crate::composed), [programs](crate::fused), [layers](crate::layer) and
/// [models](crate::model).
pub(crate) fn find(name: &str) -> Option<Case> {
    let last = |axis: usize| Params { axes: Axes::new(&[axis]).unwrap_or_default(), ..Params::default() };
    let op = |op: Op, params: Params, dtype: DType, inputs: &[&[usize]], to: DType, out: &[usize]| {
        let inputs = inputs.iter().map(|shape| (dtype, shape.to_vec())).collect();
        Some(Case { call: Call::Op(op, params), inputs, out: (to, out.to_vec()) })
    };
    let none = Params::default();
    let f32s = |which: Op, params: Params, inputs: &[&[usize]], out: &[usize]| {
        op(which, params, DType::F32, inputs, DType::F32, out)
    };
    // A stride of 1, and padding that leaves the height and the width of the images.
    let convolution = |x: &[usize], weight: &[usize]| {
        let padding = [2, 3].map(|axis| weight[axis] as u16 / 2);
        let by = Convolution { padding, ..Convolution::default() };
        f32s(Op::Conv2d, Params::convolution(by), &[x, weight], &[x[0], weight[0], x[2], x[3]])
    };
    let halves = Params::pooling(Pooling::square(2));
    let count = |text: &str| match text {
        "1e3" => Some(1_000),
        "1e5" => Some(100_000),
        "1e7" => Some(10_000_000),
        _ => None,
    };
    match name {
        "matmul_128x384x384" => return f32s(Op::MatMul, none, &[&[128, 384], &[384, 384]], &[128, 384]),
        "matmul_128x384x1536" => return f32s(Op::MatMul, none, &[&[128, 384], &[384, 1536]], &[128, 1536]),
        "matmul_1024x1024x1024" => return f32s(Op::MatMul, none, &[&[1024, 1024], &[1024, 1024]], &[1024, 1024]),
        "matmul_12x128x32x128" => {
            return f32s(Op::MatMul, none, &[&[12, 128, 32], &[12, 32, 128]], &[12, 128, 128]);
        }
        "softmax_12x128x128" => return f32s(Op::Softmax, last(2), &[&[12, 128, 128]], &[12, 128, 128]),
        "log_softmax_12x128x128" => return f32s(Op::LogSoftmax, last(2), &[&[12, 128, 128]], &[12, 128, 128]),
        "argmax_128x384" => return op(Op::ArgMax, last(1), DType::F32, &[&[128, 384]], DType::I64, &[128]),
        "argmax_1e7" => return op(Op::ArgMax, last(0), DType::F32, &[&[10_000_000]], DType::I64, &[]),
        "sum_128x384" => return f32s(Op::Sum, last(1), &[&[128, 384]], &[128]),
        "sum_1e7" => return f32s(Op::Sum, last(0), &[&[10_000_000]], &[]),
        "bias_128x384" => return f32s(Op::Add, none, &[&[128, 384], &[384]], &[128, 384]),
        "permuted_copy_128x12x32" => {
            let inputs = vec![(DType::F32, vec![128, 12, 32])];
            return Some(Case { call: Call::Permuted(&[1, 0, 2]), inputs, out: (DType::F32, vec![12, 128, 32]) });
        }
        "transposed_copy_1000x1000" => {
            let inputs = vec![(DType::F32, vec![1000, 1000])];
            return Some(Case { call: Call::Permuted(&[1, 0]), inputs, out: (DType::F32, vec![1000, 1000]) });
        }
        "conv2d_32x1x8x8_16x3x3" => return convolution(&[32, 1, 8, 8], &[16, 1, 3, 3]),
        "conv2d_32x16x4x4_32x3x3" => return convolution(&[32, 16, 4, 4], &[32, 16, 3, 3]),
        "conv2d_1x64x56x56_64x3x3" => return convolution(&[1, 64, 56, 56], &[64, 64, 3, 3]),
        "conv2d_8x64x56x56_64x3x3" => return convolution(&[8, 64, 56, 56], &[64, 64, 3, 3]),
        // `Tensor::conv1d` calls `conv2d` with images of one row.
        "conv1d_8x64x1000_64x3" => return convolution(&[8, 64, 1, 1000], &[64, 64, 1, 3]),
        "max_pool2d_8x64x56x56_2x2" => {
            return f32s(Op::MaxPool2d, halves, &[&[8, 64, 56, 56]], &[8, 64, 28, 28]);
        }
        "avg_pool2d_8x64x56x56_2x2" => {
            return f32s(Op::AvgPool2d, halves, &[&[8, 64, 56, 56]], &[8, 64, 28, 28]);
        }
        "cross_entropy_1024x1000" => {
            let inputs = vec![(DType::F32, vec![1024, 1000]), (DType::I64, vec![1024])];
            return Some(Case { call: Call::Op(Op::CrossEntropy, none), inputs, out: (DType::F32, vec![1024]) });
        }
        "rms_norm_1024x1024" => {
            return f32s(Op::RmsNorm, Params::epsilon(1e-6), &[&[1024, 1024], &[1024]], &[1024, 1024]);
        }
        "cumsum_1e6" => return f32s(Op::CumSum, last(0), &[&[1_000_000]], &[1_000_000]),
        _ => {}
    }
    let (which, size) = name.rsplit_once('_')?;
    let shape: &[usize] = &[count(size)?];
    match which {
        "exp" => f32s(Op::Exp, none, &[shape], shape),
        "tanh" => f32s(Op::Tanh, none, &[shape], shape),
        "log" => f32s(Op::Log, none, &[shape], shape),
        "sigmoid" => f32s(Op::Sigmoid, none, &[shape], shape),
        "relu" => f32s(Op::Relu, none, &[shape], shape),
        "add" => f32s(Op::Add, none, &[shape, shape], shape),
        "exp_f64" => op(Op::Exp, none, DType::F64, &[shape], DType::F64, shape),
        "tanh_f64" => op(Op::Tanh, none, DType::F64, &[shape], DType::F64, shape),
        "cast_f16" => op(Op::Cast, Params::to(DType::F16), DType::F32, &[shape], DType::F16, shape),
        "cast_from_f16" => op(Op::Cast, Params::to(DType::F32), DType::F16, &[shape], DType::F32, shape),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer;

    #[test]
    fn every_name_is_a_case() {
        assert_eq!(
            NAMES
                .into_iter()
                .filter(|name| find(name).is_none()
                    && composed::Call::of(name).is_none()
                    && fused::Steps::of(name).is_none()
                    && layer::batch_of(name).is_none()
                    && model::batch_of(name).is_none())
                .collect::<Vec<_>>(),
            [""; 0]
        );
    }

    #[test]
    fn only_elements_that_are_computed_in_several_steps_may_differ() {
        for name in
            ["sort_1e6", "topk_10_of_1e6", "argmax_1e7", "transposed_copy_1000x1000", "cast_f16_1e5", "relu_1e7"]
        {
            assert!(tolerance(name, 1e6) == 0.0, "{name}");
        }
        for name in ["attention_12x128x64", "softmax_12x128x128", "matmul_128x384x384", "exp_1e5", "bert_layer_1"] {
            // Smaller than every element that is compared.
            let tolerance = tolerance(name, -1e-5);
            assert!(tolerance > 0.0 && tolerance < 1e-7, "{name}: {tolerance}");
        }
    }
}

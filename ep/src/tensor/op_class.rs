//! The classes of ops, and the lists of dtypes that ops accept.

/// A class of ops, which share the rule for dtype and shape of the output ([`infer`](crate::infer)), and
/// how a call is planned for a device.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpClass {
    /// Each element of one input; dtype and shape are kept.
    Unary,
    /// As [`OpClass::Unary`], to bool.
    Predicate,
    /// Each pair of elements of two inputs of one dtype, whose shapes broadcast.
    Binary,
    /// As [`OpClass::Binary`], to bool.
    Comparison,
    /// A bool condition and two inputs of one dtype, all three broadcast.
    Select,
    /// Each triple of elements of three inputs of one dtype, whose shapes broadcast.
    Ternary,
    /// Each element of one input, in the dtype [`Params::to`](crate::Params::to).
    Cast,
    /// Elements along some axes become one. The axes are removed, or kept with size 1.
    Reduction,
    /// A position along one axis, as i64. The axis is removed, or kept with size 1.
    ArgReduction,
    /// `[.., m, k]` by `[.., k, n]` gives `[.., m, n]`, where `..` broadcasts.
    MatMul,
    /// Each row along one axis gives a row; dtype and shape are kept.
    Softmax,
    /// As [`OpClass::Softmax`], from two inputs of one dtype and shape.
    SoftmaxGradient,
    /// Each row along the innermost axis gives a row. Two further inputs have one axis, the innermost one; all have one dtype.
    LayerNorm,
    /// A weight `[o, c / groups, height, width]` moves over `[n, c, h, w]`, both of one dtype: `[n, o, positions, positions]`.
    Convolution,
    /// From the input, the weight and the gradient of the output of a convolution, all of one dtype: the gradient of one of the first two, of its shape.
    ConvolutionGradient,
    /// A window moves over `[n, c, h, w]`: `[n, c, positions, positions]`.
    Pooling,
    /// From the input and the gradient of the output of a pooling, of one dtype: the gradient of the input, of its shape.
    PoolingGradient,
    /// As [`OpClass::LayerNorm`], with one further input.
    RmsNorm,
    /// Each row along the innermost axis, and an i64 of the second input, whose axes are the others, give one element.
    CrossEntropy,
    /// From the inputs of a cross entropy and the gradient of its output: that of the first input, of its shape.
    CrossEntropyGradient,
    /// Each integer of the second input selects a row of the first, `[n, d]`: the output has the axes of the integers, then `d`.
    IndexSelect,
    /// Some axes grow by a margin at both ends.
    Pad,
    /// Each integer gives a row on a new innermost axis.
    OneHot,
    /// Each element goes to another place along some axes; dtype and shape are kept.
    Flip,
    /// Each matrix of the two innermost axes keeps what is on one side of a diagonal; dtype and shape are kept.
    Triangle,
    /// Each element becomes the sum of those up to it on one axis; dtype and shape are kept.
    RunningSum,
    /// Each integer of the second input selects an element of the first along one axis. Both have the same sizes on the other axes; the output has the
    /// shape of the integers.
    TakeAlongAxis,
    /// Each integer of the second input is the place along one axis at which an element of the third goes into the first. The first two have the same sizes
    /// on the other axes, the third has the shape of the second, and the output that of the first.
    Scatter,
    /// The indices of elements along one axis in sorted order, as i64: of all, or of the first few. The other axes are kept.
    ArgSort,
    /// Random numbers. No input: the caller gives the output, with its dtype and shape.
    Source,
    /// Numbers that follow from their place. No input, as for [`OpClass::Source`].
    Sequence,
    /// The rule of a registered op over whole tensors ([`TensorOp`](crate::TensorOp)).
    Registered,
}

impl OpClass {
    /// Whether an op of this class computes with the elements of its tensor at this place, so that they need the dtype that it computes in. Conditions, indices,
    /// classes, and inputs of ops that give another dtype by themselves do not.
    pub const fn computes_with(self, input: usize) -> bool {
        match self {
            OpClass::Unary
            | OpClass::Reduction
            | OpClass::Softmax
            | OpClass::Pooling
            | OpClass::Pad
            | OpClass::Flip => true,
            OpClass::Triangle | OpClass::RunningSum => true,
            OpClass::Binary | OpClass::Comparison | OpClass::Ternary | OpClass::MatMul => true,
            OpClass::LayerNorm | OpClass::RmsNorm | OpClass::Convolution => true,
            OpClass::SoftmaxGradient | OpClass::ConvolutionGradient | OpClass::PoolingGradient => true,
            OpClass::Select => input > 0,
            OpClass::IndexSelect | OpClass::TakeAlongAxis | OpClass::CrossEntropy => input == 0,
            OpClass::CrossEntropyGradient | OpClass::Scatter => input != 1,
            OpClass::Predicate | OpClass::Cast | OpClass::ArgReduction | OpClass::ArgSort | OpClass::OneHot => false,
            OpClass::Source | OpClass::Sequence => false,
            // Its rule may want inputs of different dtypes.
            OpClass::Registered => false,
        }
    }
}

/// About how much work an elementwise op is for each element.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ElementWork {
    /// A few instructions.
    Light,
    /// A polynomial or two, such as an exponential. On a CPU several elements are computed at a time.
    Long,
    /// A function of a library, which a CPU calls for each element.
    Call,
}

/// Lists of dtypes that ops accept.
pub(crate) mod dtypes {
    use crate::tensor::dtype::DType::{self, BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

    pub(crate) const FLOATS: &[DType] = &[F32, F64, F16, BF16];
    pub(crate) const SIGNED: &[DType] = &[F32, F64, F16, BF16, I8, I16, I32, I64];
    pub(crate) const NUMBERS: &[DType] = &[F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64];
    pub(crate) const ALL: &[DType] = &DType::ALL;
    pub(crate) const INTEGERS: &[DType] = &[I8, I16, I32, I64, U8, U16, U32, U64];
    /// Of products of matrices, which would overflow in fewer bits.
    pub(crate) const WIDE_SIGNED: &[DType] = &[F32, F64, F16, BF16, I32, I64];
    /// A bit for each dtype of a list.
    pub(crate) const fn set(list: &[DType]) -> u16 {
        let (mut bits, mut at) = (0, 0);
        while at < list.len() {
            bits |= 1 << list[at] as u16;
            at += 1;
        }
        bits
    }

    /// Of positions.
    pub(crate) const INDICES: &[DType] = &[I32, I64, U8];
    pub(crate) const BOOL: &[DType] = &[Bool];
}

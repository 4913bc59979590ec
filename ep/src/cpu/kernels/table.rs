//! The table of CPU kernels.

use half::{bf16, f16};

use crate::call::kernel::{Kernel, KernelFn};
use crate::call::kernel_registry::KernelRegistry;
use crate::cpu::kernels::argmax::arg_extreme;
use crate::cpu::kernels::cast::cast_from;
use crate::cpu::kernels::convolution::{conv2d, conv2d_backward_input, conv2d_backward_weight};
use crate::cpu::kernels::cross_entropy::{cross_entropy, cross_entropy_backward};
use crate::cpu::kernels::elementwise::{binary, clamp, compare, predicate, select, unary};
use crate::cpu::kernels::index_select::index_select;
use crate::cpu::kernels::layer_norm::layer_norm;
use crate::cpu::kernels::matmul::matmul;
use crate::cpu::kernels::one_hot::one_hot;
use crate::cpu::kernels::pad::pad;
use crate::cpu::kernels::pooling::{self, avg_backward, max_backward, pool};
use crate::cpu::kernels::random::{self, random};
use crate::cpu::kernels::reduce::{All, Any, Largest, Mean, Prod, Smallest, Std, Sum, Var, reduce};
use crate::cpu::kernels::rms_norm::rms_norm;
use crate::cpu::kernels::softmax::{self, backward, forward};
use crate::cpu::kernels::{arith, number::DTypeTag};
use crate::names::device_id::DeviceKind;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;

/// Adds every CPU kernel to the registry, as kernels of `device`, whose memory the CPU must be able to access.
pub(crate) fn register(registry: &mut KernelRegistry, device: DeviceKind) {
    let mut add = |op, dtype, run: KernelFn| {
        registry.register(Kernel { op, device, dtype, run });
    };
    macro_rules! kernels {
        // The lists of dtypes of the table of ops, whose elements must be types here. A test compares the two.
        (FLOATS $($rest:tt)*) => { kernels!([f32, f64, f16, bf16] $($rest)*) };
        (SIGNED $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i32, i64] $($rest)*) };
        (NUMBERS $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i32, i64, u8] $($rest)*) };
        (ALL $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i32, i64, u8, bool] $($rest)*) };
        (INTEGERS $($rest:tt)*) => { kernels!([i32, i64, u8] $($rest)*) };
        (BOOL $($rest:tt)*) => { kernels!([bool] $($rest)*) };
        // Ops of which each is a type of the same name.
        ($dtypes:tt each $kernel:ident: $($op:ident)*) => {
            $(kernels!($dtypes $op $kernel of arith::$op);)*
        };
        ([$($dtype:ty),*] $op:ident $kernel:ident) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype>);)*
        };
        ([$($dtype:ty),*] $op:ident $kernel:ident of $how:ty) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype, $how>);)*
        };
    }
    kernels!(SIGNED each unary: Neg Abs Relu Sign);
    kernels!(FLOATS each unary: Exp Log Sqrt Tanh Sigmoid Erf Gelu GeluTanh Silu Rsqrt);
    kernels!(FLOATS each unary: Reciprocal Floor Ceil Round Trunc Log2 Log10 Exp2);
    kernels!(FLOATS each unary: Sin Cos Tan Asin Acos Atan Sinh Cosh Log1p Expm1);
    kernels!(INTEGERS each unary: BitNot);
    kernels!(BOOL each unary: Not);
    kernels!(FLOATS each predicate: IsNan IsInf IsFinite);

    kernels!(NUMBERS each binary: Add Sub Mul Div FloorDiv Remainder Pow);
    kernels!(ALL each binary: Min Max);
    kernels!(FLOATS each binary: Atan2);
    kernels!(INTEGERS each binary: BitAnd BitOr BitXor Shl Shr);
    // A bool is a byte of which one bit is in use.
    kernels!(BOOL And binary of arith::BitAnd);
    kernels!(BOOL Or binary of arith::BitOr);
    kernels!(BOOL Xor binary of arith::BitXor);
    kernels!(ALL each compare: Eq Ne Lt Le Gt Ge);
    kernels!(ALL Where select);
    kernels!(NUMBERS Clamp clamp);

    kernels!(NUMBERS Sum reduce of Sum);
    kernels!(FLOATS Mean reduce of Mean);
    kernels!(ALL ReduceMax reduce of Largest);
    kernels!(ALL ReduceMin reduce of Smallest);
    kernels!(NUMBERS Prod reduce of Prod);
    kernels!(FLOATS Var reduce of Var);
    kernels!(FLOATS Std reduce of Std);
    kernels!(BOOL Any reduce of Any);
    kernels!(BOOL All reduce of All);
    kernels!(ALL ArgMax arg_extreme of Largest);
    kernels!(ALL ArgMin arg_extreme of Smallest);

    kernels!(SIGNED MatMul matmul);
    kernels!(FLOATS Softmax forward of softmax::Softmax);
    kernels!(FLOATS LogSoftmax forward of softmax::LogSoftmax);
    kernels!(FLOATS SoftmaxBackward backward of softmax::SoftmaxBackward);
    kernels!(FLOATS LogSoftmaxBackward backward of softmax::LogSoftmaxBackward);
    kernels!(FLOATS Uniform random of random::Uniform);
    kernels!(FLOATS Normal random of random::Normal);
    kernels!(FLOATS LayerNorm layer_norm);
    kernels!(INTEGERS OneHot one_hot);
    kernels!(FLOATS Conv2d conv2d);
    kernels!(FLOATS Conv2dBackwardInput conv2d_backward_input);
    kernels!(FLOATS Conv2dBackwardWeight conv2d_backward_weight);
    kernels!(FLOATS RmsNorm rms_norm);
    kernels!(FLOATS CrossEntropy cross_entropy);
    kernels!(FLOATS CrossEntropyBackward cross_entropy_backward);
    kernels!(FLOATS MaxPool2d pool of pooling::Largest);
    kernels!(FLOATS AvgPool2d pool of pooling::Average);
    kernels!(FLOATS MaxPool2dBackward max_backward);
    kernels!(FLOATS AvgPool2dBackward avg_backward);
    for dtype in DType::ALL {
        add(Op::IndexSelect, dtype, index_select);
        add(Op::Pad, dtype, pad);
        add(Op::Cast, dtype, cast_from(dtype));
    }
}

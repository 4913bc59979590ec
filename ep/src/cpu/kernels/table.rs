//! The table of CPU kernels.

use half::{bf16, f16};

use crate::call::kernel::{Kernel, KernelFn};
use crate::call::kernel_registry::KernelRegistry;
use crate::cpu::kernels::argmax::argmax;
use crate::cpu::kernels::cast::cast_from;
use crate::cpu::kernels::elementwise::{binary, compare, select, unary};
use crate::cpu::kernels::index_select::index_select;
use crate::cpu::kernels::layer_norm::layer_norm;
use crate::cpu::kernels::matmul::matmul;
use crate::cpu::kernels::one_hot::one_hot;
use crate::cpu::kernels::pad::pad;
use crate::cpu::kernels::random::{self, random};
use crate::cpu::kernels::reduce::{Largest, Mean, Smallest, Sum, reduce};
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
        (INDICES $($rest:tt)*) => { kernels!([i32, i64, u8] $($rest)*) };
        ([$($dtype:ty),*] $op:ident $kernel:ident) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype>);)*
        };
        ([$($dtype:ty),*] $op:ident $kernel:ident of $how:ty) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype, $how>);)*
        };
    }
    kernels!(SIGNED Neg unary of arith::Neg);
    kernels!(SIGNED Abs unary of arith::Abs);
    kernels!(SIGNED Relu unary of arith::Relu);
    kernels!(FLOATS Exp unary of arith::Exp);
    kernels!(FLOATS Log unary of arith::Log);
    kernels!(FLOATS Sqrt unary of arith::Sqrt);
    kernels!(FLOATS Tanh unary of arith::Tanh);
    kernels!(FLOATS Sigmoid unary of arith::Sigmoid);
    kernels!(FLOATS Erf unary of arith::Erf);
    kernels!(FLOATS Gelu unary of arith::Gelu);
    kernels!(FLOATS GeluTanh unary of arith::GeluTanh);
    kernels!(FLOATS Silu unary of arith::Silu);
    kernels!(FLOATS Rsqrt unary of arith::Rsqrt);

    kernels!(NUMBERS Add binary of arith::Add);
    kernels!(NUMBERS Sub binary of arith::Sub);
    kernels!(NUMBERS Mul binary of arith::Mul);
    kernels!(NUMBERS Div binary of arith::Div);
    kernels!(NUMBERS Pow binary of arith::Pow);
    kernels!(ALL Min binary of arith::Min);
    kernels!(ALL Max binary of arith::Max);

    kernels!(ALL Eq compare of arith::Eq);
    kernels!(ALL Ne compare of arith::Ne);
    kernels!(ALL Lt compare of arith::Lt);
    kernels!(ALL Le compare of arith::Le);
    kernels!(ALL Gt compare of arith::Gt);
    kernels!(ALL Ge compare of arith::Ge);
    kernels!(ALL Where select);

    kernels!(NUMBERS Sum reduce of Sum);
    kernels!(FLOATS Mean reduce of Mean);
    kernels!(ALL ReduceMax reduce of Largest);
    kernels!(ALL ReduceMin reduce of Smallest);
    kernels!(ALL ArgMax argmax);

    kernels!(SIGNED MatMul matmul);
    kernels!(FLOATS Softmax forward of softmax::Softmax);
    kernels!(FLOATS LogSoftmax forward of softmax::LogSoftmax);
    kernels!(FLOATS SoftmaxBackward backward of softmax::SoftmaxBackward);
    kernels!(FLOATS LogSoftmaxBackward backward of softmax::LogSoftmaxBackward);
    kernels!(FLOATS Uniform random of random::Uniform);
    kernels!(FLOATS Normal random of random::Normal);
    kernels!(FLOATS LayerNorm layer_norm);
    kernels!(INDICES OneHot one_hot);
    for dtype in DType::ALL {
        add(Op::IndexSelect, dtype, index_select);
        add(Op::Pad, dtype, pad);
        add(Op::Cast, dtype, cast_from(dtype));
    }
}

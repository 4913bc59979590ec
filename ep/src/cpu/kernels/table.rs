//! The table of CPU kernels.

use half::{bf16, f16};

use crate::call::kernel::{Kernel, KernelFn};
use crate::call::kernel_registry::KernelRegistry;
use crate::cpu::kernels::argmax::argmax;
use crate::cpu::kernels::cast::cast_from;
use crate::cpu::kernels::elementwise::{binary, compare, select, unary};
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
        ($op:ident [$($dtype:ty),*] $kernel:ident) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype>);)*
        };
        ($op:ident [$($dtype:ty),*] $kernel:ident of $how:ty) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype, $how>);)*
        };
    }
    kernels!(Neg [f32, f64, f16, bf16, i32, i64] unary of arith::Neg);
    kernels!(Abs [f32, f64, f16, bf16, i32, i64] unary of arith::Abs);
    kernels!(Relu [f32, f64, f16, bf16, i32, i64] unary of arith::Relu);
    kernels!(Exp [f32, f64, f16, bf16] unary of arith::Exp);
    kernels!(Log [f32, f64, f16, bf16] unary of arith::Log);
    kernels!(Sqrt [f32, f64, f16, bf16] unary of arith::Sqrt);
    kernels!(Tanh [f32, f64, f16, bf16] unary of arith::Tanh);
    kernels!(Sigmoid [f32, f64, f16, bf16] unary of arith::Sigmoid);

    kernels!(Add [f32, f64, f16, bf16, i32, i64, u8] binary of arith::Add);
    kernels!(Sub [f32, f64, f16, bf16, i32, i64, u8] binary of arith::Sub);
    kernels!(Mul [f32, f64, f16, bf16, i32, i64, u8] binary of arith::Mul);
    kernels!(Div [f32, f64, f16, bf16, i32, i64, u8] binary of arith::Div);
    kernels!(Pow [f32, f64, f16, bf16, i32, i64, u8] binary of arith::Pow);
    kernels!(Min [f32, f64, f16, bf16, i32, i64, u8, bool] binary of arith::Min);
    kernels!(Max [f32, f64, f16, bf16, i32, i64, u8, bool] binary of arith::Max);

    kernels!(Eq [f32, f64, f16, bf16, i32, i64, u8, bool] compare of arith::Eq);
    kernels!(Ne [f32, f64, f16, bf16, i32, i64, u8, bool] compare of arith::Ne);
    kernels!(Lt [f32, f64, f16, bf16, i32, i64, u8, bool] compare of arith::Lt);
    kernels!(Le [f32, f64, f16, bf16, i32, i64, u8, bool] compare of arith::Le);
    kernels!(Gt [f32, f64, f16, bf16, i32, i64, u8, bool] compare of arith::Gt);
    kernels!(Ge [f32, f64, f16, bf16, i32, i64, u8, bool] compare of arith::Ge);
    kernels!(Where [f32, f64, f16, bf16, i32, i64, u8, bool] select);

    kernels!(Sum [f32, f64, f16, bf16, i32, i64, u8] reduce of Sum);
    kernels!(Mean [f32, f64, f16, bf16] reduce of Mean);
    kernels!(ReduceMax [f32, f64, f16, bf16, i32, i64, u8, bool] reduce of Largest);
    kernels!(ReduceMin [f32, f64, f16, bf16, i32, i64, u8, bool] reduce of Smallest);
    kernels!(ArgMax [f32, f64, f16, bf16, i32, i64, u8, bool] argmax);

    kernels!(MatMul [f32, f64, f16, bf16, i32, i64] matmul);
    kernels!(Softmax [f32, f64, f16, bf16] forward of softmax::Softmax);
    kernels!(LogSoftmax [f32, f64, f16, bf16] forward of softmax::LogSoftmax);
    kernels!(SoftmaxBackward [f32, f64, f16, bf16] backward of softmax::SoftmaxBackward);
    kernels!(LogSoftmaxBackward [f32, f64, f16, bf16] backward of softmax::LogSoftmaxBackward);
    kernels!(Uniform [f32, f64, f16, bf16] random of random::Uniform);
    kernels!(Normal [f32, f64, f16, bf16] random of random::Normal);
    kernels!(OneHot [i32, i64, u8] one_hot);
    for dtype in DType::ALL {
        add(Op::Pad, dtype, pad);
        add(Op::Cast, dtype, cast_from(dtype));
    }
}

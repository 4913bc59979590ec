//! The table of CPU kernels.

use std::sync::LazyLock;

use half::{bf16, f16};
use streamvm_ep::{DType, DeviceKind, Kernel, KernelFn, KernelRegistry, Op, RegisteredOp};

use crate::along_axis::{scatter, scatter_add, take_along_axis};
use crate::arange::arange;
use crate::argmax::arg_extreme;
use crate::argsort::argsort;
use crate::cast::cast;
use crate::convolution::{conv2d, conv2d_backward_input, conv2d_backward_weight};
use crate::cross_entropy::{cross_entropy, cross_entropy_backward};
use crate::cumsum::cumsum;
use crate::elementwise::{binary, binary_of_bits, clamp, compare, predicate, select, unary, unary_of_bits};
use crate::flip::flip;
use crate::index_select::index_select;
use crate::layer_norm::layer_norm;
use crate::matmul::matmul;
use crate::one_hot::one_hot;
use crate::pad::pad;
use crate::pooling::{self, avg_backward, max_backward, pool};
use crate::random::{self, random};
use crate::reduce::{All, Any, Largest, Mean, Prod, Smallest, Std, Sum, Var, reduce};
use crate::registered;
use crate::rms_norm::rms_norm;
use crate::softmax::{self, backward, forward};
use crate::triangle::triangle;
use crate::{arith, number::DTypeTag};

/// Whether this is the CPU kernel that [`register`] adds, and not one that a caller has put in its place.
pub fn is_own(kernel: &Kernel) -> bool {
    static OWN: LazyLock<KernelRegistry> = LazyLock::new(|| {
        let mut own = KernelRegistry::empty();
        register(&mut own, DeviceKind::CPU);
        own
    });
    let own = OWN.find(kernel.op, DeviceKind::CPU, kernel.dtype);
    // Functions of one address have the same code, so they compute the same.
    own.is_some_and(|own| std::ptr::fn_addr_eq(own.run, kernel.run))
}

/// Adds the CPU kernels that models run, so that builds for loom and shuttle do not compile all others.
#[cfg(any(loom, shuttle))]
pub fn register(registry: &mut KernelRegistry, device: DeviceKind) {
    let kernels: [(Op, KernelFn); 2] = [(Op::Add, binary::<f32, arith::Add>), (Op::Neg, unary::<f32, arith::Neg>)];
    for (op, run) in kernels {
        registry.register(Kernel { op, device, dtype: DType::F32, run });
    }
}

/// Adds every CPU kernel to the registry, as kernels of `device`, whose memory the CPU must be able to access.
#[cfg(not(any(loom, shuttle)))]
pub fn register(registry: &mut KernelRegistry, device: DeviceKind) {
    registry.run_registered_ops(device, RegisteredOp::has_host_kernel, registered::run);
    let mut add = |op, dtype, run: KernelFn| {
        registry.register(Kernel { op, device, dtype, run });
    };
    macro_rules! kernels {
        // The lists of dtypes of the table of ops, whose elements must be types here. A test compares the two.
        (FLOATS $($rest:tt)*) => { kernels!([f32, f64, f16, bf16] $($rest)*) };
        (SIGNED $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i8, i16, i32, i64] $($rest)*) };
        (NUMBERS $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64] $($rest)*) };
        (ALL $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool] $($rest)*) };
        (INTEGERS $($rest:tt)*) => { kernels!([i8, i16, i32, i64, u8, u16, u32, u64] $($rest)*) };
        (WIDE_SIGNED $($rest:tt)*) => { kernels!([f32, f64, f16, bf16, i32, i64] $($rest)*) };
        (INDICES $($rest:tt)*) => { kernels!([i32, i64, u8] $($rest)*) };
        (BOOL $($rest:tt)*) => { kernels!([bool] $($rest)*) };
        // Kernels that give the same bits for both signs of an integer: each integer has the kernel of one of the two.
        (BOTH_SIGNS $($rest:tt)*) => {
            kernels!([i16, i32, i64, u8] $($rest)*);
            kernels!([u16 by i16, u32 by i32, u64 by i64, i8 by u8] $($rest)*);
        };
        // Ops of which each is a type of the same name.
        ($dtypes:tt each $kernel:ident: $($op:ident)*) => {
            $(kernels!($dtypes $op $kernel of arith::$op);)*
        };
        ([$($dtype:ident by $other:ident),*] $op:ident $kernel:ident) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$other>);)*
        };
        ([$($dtype:ident by $other:ident),*] $op:ident $kernel:ident of $how:ty) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$other, $how>);)*
        };
        ([$($dtype:ty),*] $op:ident $kernel:ident) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype>);)*
        };
        ([$($dtype:ty),*] $op:ident $kernel:ident of $how:ty) => {
            $(add(Op::$op, <$dtype as DTypeTag>::DTYPE, $kernel::<$dtype, $how>);)*
        };
    }
    kernels!(SIGNED each unary_of_bits: Neg Abs Relu Sign);
    // The unary ops of floats.
    macro_rules! functions {
        ({$($(#[$doc:meta])* $op:ident: $name:literal, $class:ident, $dtypes:ident, $method:ident($($signature:tt)*)
            $(=> $params:expr)? $(, { $($facts:tt)* })?;)*} {$($sources:tt)*}) => {
            $(function! { $class $dtypes $op })*
        };
    }
    macro_rules! function {
        (Unary FLOATS $op:ident) => { kernels!(FLOATS each unary: $op); };
        ($($other:tt)*) => {};
    }
    streamvm_ep::op_table!(functions);
    kernels!(BOTH_SIGNS each unary: BitNot);
    kernels!(BOOL each unary: Not);
    kernels!(FLOATS each predicate: IsNan IsInf IsFinite);
    // These take no longer than the conversions of `bf16`, which are a few operations and within their loops: tiles would be passed over three times.
    kernels!([bf16] Sqrt unary_of_bits of arith::Widened<arith::Sqrt>);
    kernels!([bf16] Reciprocal unary_of_bits of arith::Widened<arith::Reciprocal>);

    kernels!([f32, f64, f16] each binary: Add Sub Mul);
    kernels!(BOTH_SIGNS each binary: Add Sub Mul);
    kernels!(NUMBERS each binary: Div FloorDiv Remainder Pow);
    kernels!(ALL each binary_of_bits: Min Max);
    kernels!([bf16] each binary_of_bits: Add Sub Mul Div);
    kernels!(FLOATS each binary: Atan2);
    kernels!(BOTH_SIGNS each binary: BitAnd BitOr BitXor Shl);
    kernels!(INTEGERS each binary: Shr);
    // A bool is a byte of which one bit is in use.
    kernels!(BOOL And binary of arith::BitAnd);
    kernels!(BOOL Or binary of arith::BitOr);
    kernels!(BOOL Xor binary of arith::BitXor);
    kernels!(FLOATS each compare: Eq Ne);
    kernels!(BOTH_SIGNS each compare: Eq Ne);
    kernels!(BOOL each compare: Eq Ne);
    kernels!(ALL each compare: Lt Le Gt Ge);
    kernels!(ALL Where select);
    kernels!(ALL Cast cast);
    kernels!(NUMBERS Clamp clamp);

    kernels!(FLOATS Sum reduce of Sum);
    kernels!(BOTH_SIGNS Sum reduce of Sum);
    kernels!(FLOATS Mean reduce of Mean);
    kernels!(ALL ReduceMax reduce of Largest);
    kernels!(ALL ReduceMin reduce of Smallest);
    kernels!(FLOATS Prod reduce of Prod);
    kernels!(BOTH_SIGNS Prod reduce of Prod);
    kernels!(FLOATS Var reduce of Var);
    kernels!(FLOATS Std reduce of Std);
    kernels!(BOOL Any reduce of Any);
    kernels!(BOOL All reduce of All);
    kernels!(ALL ArgMax arg_extreme of Largest);
    kernels!(ALL ArgMin arg_extreme of Smallest);

    kernels!(WIDE_SIGNED MatMul matmul);
    kernels!(FLOATS Softmax forward of softmax::Softmax);
    kernels!(FLOATS LogSoftmax forward of softmax::LogSoftmax);
    kernels!(FLOATS SoftmaxBackward backward of softmax::SoftmaxBackward);
    kernels!(FLOATS LogSoftmaxBackward backward of softmax::LogSoftmaxBackward);
    kernels!(FLOATS Uniform random of random::Uniform);
    kernels!(FLOATS Normal random of random::Normal);
    kernels!(FLOATS LayerNorm layer_norm);
    kernels!(INDICES OneHot one_hot);
    kernels!(FLOATS CumSum cumsum);
    kernels!(BOTH_SIGNS CumSum cumsum);
    kernels!(FLOATS ScatterAdd scatter_add);
    kernels!(BOTH_SIGNS ScatterAdd scatter_add);
    for &dtype in Op::Arange.dtypes() {
        add(Op::Arange, dtype, arange);
    }
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
        add(Op::Flip, dtype, flip);
        add(Op::Tril, dtype, triangle);
        add(Op::Triu, dtype, triangle);
        add(Op::TakeAlongAxis, dtype, take_along_axis);
        add(Op::Scatter, dtype, scatter);
        add(Op::ArgSort, dtype, argsort);
        add(Op::ArgTopK, dtype, argsort);
    }
}

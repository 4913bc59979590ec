//! From a call to a launch: the checks, the kernel, its arguments and the grid. Allocates nothing.
//!
//! Layer: uses no other folder; is used by `elementwise`, `fused`, `instance` and `stream`.
//!
//! | file | idea |
//! |---|---|
//! | `kernel_name` | which kernels there are, in which module each is, and which can fail |
//! | `abi` | the arguments of a launch, as the kernels read them |
//! | `axes` | operands as strides over few axes |
//! | `arrange`, `positional`, `sort`, `window`, `reduce`, `parts` | the launches of the classes of ops; a reduction in several parts |
//! | `reduction_state` | what threads know of a part of a reduction |
//! | `gemm` | a product as cuBLAS takes it |
//! | `condition` | the kernel that sets the condition of a block of a graph |

pub mod abi;
mod arrange;
pub(crate) mod axes;
pub(crate) mod condition;
#[cfg(feature = "cuda")]
pub(crate) mod gemm;
pub(crate) mod kernel_name;
pub(crate) mod parts;
mod positional;
mod reduce;
pub(crate) mod reduction_state;
mod sort;
mod window;

use streamvm_ep::backend::check::{InPlace, check_broadcast, check_fill, check_inferred, checked_operands};
use streamvm_ep::{
    DType, Error, Extra, KernelCall, KernelError, Layout, MAX_RANK, Numbers, Op, OpClass, OpError, Operand, Scalar,
    check_source,
};

use crate::plan::abi::{Arguments, MAX_VIEWS, View};
use crate::plan::arrange::{arange, cumsum, flip, scatter, take_along_axis, triangle};
use crate::plan::axes::{Axes, Order, stride_to};
use crate::plan::kernel_name::{KernelName, NumberPlaces};
use crate::plan::positional::{index_select, one_hot, pad, random};
use crate::plan::reduce::{cross_entropy, matmul, norm, reduction, softmax};
use crate::plan::sort::argsort;
use crate::plan::window::{convolution, pooling};

/// Threads per block, except for some reductions; `BLOCK` in `abi.cuh`.
pub(crate) const BLOCK: u32 = 256;

/// The most blocks of a launch; kernels loop over further elements. This is far below the limit of 2^31 - 1, and many times the number
/// that the largest devices run at once (about 160 multiprocessors with 8 blocks each), so that the last, incomplete wave is short. Not
/// measured.
pub(crate) const MAX_BLOCKS: usize = 1 << 16;

/// The elements that a thread processes at a time if [`Arguments::vectors`] is 1.
pub(crate) const FOUR: usize = 4;

/// One launch of one kernel, with everything that the driver's launch call needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: KernelName,
    /// Blocks per axis; at most 2^31 - 1 on the first, 65535 on the others, none 0.
    pub grid: [u32; 3],
    /// Threads of a block per axis; at most 1024 in all.
    pub block: [u32; 3],
    /// Bytes of shared memory per block; at most 48 KiB, the limit that every device has without opting in to more.
    pub shared_bytes: u32,
    /// Its one parameter.
    pub arguments: Arguments,
}

/// The launch for a call of a built-in op on a CUDA device, whose memory the operands are in; `None` if the output has no elements. Reads
/// no element and does not block.
///
/// The op and the dtype are those of [`KernelCall::kernel`]. The stream checks operands for overlap, as on a CPU; this function makes the
/// checks that each kernel makes itself.
///
/// # Errors
///
/// Those of a CPU kernel for the same operands, except [`KernelError::OutOfMemory`] and errors that depend on elements: see
/// [`KernelName::failure`]. [`OpError::DType`] if the op does not support the dtype. [`OpError::SortLength`], which no CPU kernel returns, if
/// an argsort or argtopk is along an axis of more than 2^32 - 1 elements.
pub fn plan(call: &KernelCall<'_, '_>) -> Result<Option<Launch>, KernelError> {
    let (op, dtype) = (call.kernel.op, call.kernel.dtype);
    if !op.supports(dtype) {
        return Err(OpError::DType { op, dtype, available: op.dtypes() }.into());
    }
    if let Extra::Numbers(numbers) = &call.params.extra {
        return plan_with_numbers(call, numbers);
    }
    let name = KernelName::Op(op, dtype);
    match op.class() {
        OpClass::Unary | OpClass::Predicate => {
            let ([a], out) = checked_operands(call, [dtype], op.elementwise_output(dtype), InPlace::Allowed)?;
            check_broadcast(op, &[a], out)?;
            Ok(elementwise(name, [out, a]))
        }
        OpClass::Binary | OpClass::Comparison => {
            let ([a, b], out) = checked_operands(call, [dtype; 2], op.elementwise_output(dtype), InPlace::Allowed)?;
            check_broadcast(op, &[a, b], out)?;
            Ok(elementwise(name, [out, a, b]))
        }
        OpClass::Select => {
            let ([condition, a, b], out) =
                checked_operands(call, [DType::Bool, dtype, dtype], dtype, InPlace::Allowed)?;
            check_broadcast(op, &[condition, a, b], out)?;
            Ok(elementwise(name, [out, condition, a, b]))
        }
        OpClass::Ternary => {
            let ([a, b, c], out) = checked_operands(call, [dtype; 3], dtype, InPlace::Allowed)?;
            check_broadcast(op, &[a, b, c], out)?;
            Ok(elementwise(name, [out, a, b, c]))
        }
        OpClass::Cast => {
            let to = call.params.to.ok_or(OpError::MissingTarget { op })?;
            let ([a], out) = checked_operands(call, [dtype], to, InPlace::Allowed)?;
            check_inferred(op, [a], out, call)?;
            Ok(elementwise(KernelName::Cast(dtype, to), [out, a]))
        }
        OpClass::Reduction | OpClass::ArgReduction => {
            let output_dtype = if op.class() == OpClass::ArgReduction { DType::I64 } else { dtype };
            let ([a], out) = checked_operands(call, [dtype], output_dtype, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(reduction(name, a, out, call.params))
        }
        OpClass::MatMul => {
            let ([a, b], out) = checked_operands(call, [dtype; 2], dtype, InPlace::Refused)?;
            check_inferred(op, [a, b], out, call)?;
            Ok(matmul(name, a, b, out))
        }
        OpClass::Softmax => {
            let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(softmax(name, [out, a], call.params))
        }
        OpClass::SoftmaxGradient => {
            let ([y, dy], out) = checked_operands(call, [dtype; 2], dtype, InPlace::Refused)?;
            check_inferred(op, [y, dy], out, call)?;
            Ok(softmax(name, [out, y, dy], call.params))
        }
        OpClass::LayerNorm => {
            let ([x, weight, bias], out) = checked_operands(call, [dtype; 3], dtype, InPlace::Refused)?;
            check_inferred(op, [x, weight, bias], out, call)?;
            Ok(norm(name, [out, x, weight, bias], call.params.checked_epsilon(op)?))
        }
        OpClass::RmsNorm => {
            let ([x, weight], out) = checked_operands(call, [dtype; 2], dtype, InPlace::Refused)?;
            check_inferred(op, [x, weight], out, call)?;
            Ok(norm(name, [out, x, weight], call.params.checked_epsilon(op)?))
        }
        OpClass::IndexSelect => {
            let from = call.operands.get(1).map_or(DType::I64, Operand::dtype);
            let ([table, indices], out) = checked_operands(call, [dtype, from], dtype, InPlace::Refused)?;
            check_inferred(op, [table, indices], out, call)?;
            Ok(index_select(table, indices, out))
        }
        OpClass::CrossEntropy => {
            let ([logits, targets], out) = checked_operands(call, [dtype, DType::I64], dtype, InPlace::Refused)?;
            check_inferred(op, [logits, targets], out, call)?;
            Ok(cross_entropy(name, [out, logits, targets], [false, true, false]))
        }
        OpClass::CrossEntropyGradient => {
            let ([logits, targets, dy], out) =
                checked_operands(call, [dtype, DType::I64, dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [logits, targets, dy], out, call)?;
            Ok(cross_entropy(name, [out, logits, targets, dy], [true, true, false, false]))
        }
        OpClass::Convolution => {
            let ([x, weight], out) = checked_operands(call, [dtype; 2], dtype, InPlace::Refused)?;
            check_inferred(op, [x, weight], out, call)?;
            convolution(name, op, &[x, weight, out], call.params)
        }
        OpClass::ConvolutionGradient => {
            let ([x, weight, dy], out) = checked_operands(call, [dtype; 3], dtype, InPlace::Refused)?;
            check_inferred(op, [x, weight, dy], out, call)?;
            convolution(name, op, &[x, weight, dy, out], call.params)
        }
        OpClass::Pooling => {
            let ([x], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [x], out, call)?;
            pooling(name, op, &[x, out], call.params)
        }
        OpClass::PoolingGradient => {
            let ([x, dy], out) = checked_operands(call, [dtype; 2], dtype, InPlace::Refused)?;
            check_inferred(op, [x, dy], out, call)?;
            pooling(name, op, &[x, dy, out], call.params)
        }
        OpClass::Pad => {
            let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(pad(a, out, call.params)?)
        }
        OpClass::OneHot => {
            let to = call.params.to.ok_or(OpError::MissingTarget { op })?;
            let ([a], out) = checked_operands(call, [dtype], to, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(one_hot(a, out)?)
        }
        OpClass::Flip => {
            let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(flip(a, out, call.params))
        }
        OpClass::Triangle => {
            let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(triangle(op, a, out, call.params.checked_diagonal(op)?))
        }
        OpClass::RunningSum => {
            let ([a], out) = checked_operands(call, [dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(cumsum(name, a, out, call.params))
        }
        OpClass::TakeAlongAxis => {
            let from = call.operands.get(1).map_or(DType::I64, Operand::dtype);
            let ([a, at], out) = checked_operands(call, [dtype, from], dtype, InPlace::Refused)?;
            check_inferred(op, [a, at], out, call)?;
            Ok(take_along_axis([a, at, out], call.params))
        }
        OpClass::Scatter => {
            let from = call.operands.get(1).map_or(DType::I64, Operand::dtype);
            let ([a, at, source], out) = checked_operands(call, [dtype, from, dtype], dtype, InPlace::Refused)?;
            check_inferred(op, [a, at, source], out, call)?;
            Ok(scatter(op, dtype, [a, at, source, out], call.params))
        }
        OpClass::ArgSort => {
            let ([a], out) = checked_operands(call, [dtype], DType::I64, InPlace::Refused)?;
            check_inferred(op, [a], out, call)?;
            Ok(argsort(op, a, out, call.params)?)
        }
        OpClass::Sequence => {
            let ([], out) = checked_operands(call, [], dtype, InPlace::Refused)?;
            check_source(op, dtype, call.params)?;
            Ok(arange(name, out, call.params))
        }
        OpClass::Source => {
            let ([], out) = checked_operands(call, [], dtype, InPlace::Refused)?;
            check_source(op, dtype, call.params)?;
            let (seed, counter) = call.params.checked_random(op)?;
            Ok(random(name, out, seed, counter))
        }
        // Its launch is made by code of the caller.
        OpClass::Registered => Err(KernelError::Other(format!("{op} is planned by its own code"))),
    }
}

/// [`plan`] for a call with numbers among its inputs: the parameter has them.
fn plan_with_numbers(call: &KernelCall<'_, '_>, numbers: &Numbers) -> Result<Option<Launch>, KernelError> {
    let (op, dtype) = (call.kernel.op, call.kernel.dtype);
    let places = NumberPlaces::of(numbers).filter(|_| numbers.fit(op)).ok_or(OpError::Numbers { op })?;
    let mut bits = [0; 2];
    for (bits, (_, value)) in bits.iter_mut().zip(numbers.iter()) {
        *bits = value.element_bits(dtype).ok_or(OpError::Value { op, value, dtype })?;
    }
    let (name, output) = (KernelName::WithNumbers(op, dtype, places), op.elementwise_output(dtype));
    let launch = match (op.arity() - places.count(), op.class()) {
        (1, _) => {
            let ([a], out) = checked_operands(call, [dtype], output, InPlace::Allowed)?;
            check_broadcast(op, &[a], out)?;
            elementwise(name, [out, a])
        }
        (_, class) => {
            let first = if class == OpClass::Select { DType::Bool } else { dtype };
            let ([a, b], out) = checked_operands(call, [first, dtype], output, InPlace::Allowed)?;
            check_broadcast(op, &[a, b], out)?;
            elementwise(name, [out, a, b])
        }
    };
    let Some(mut launch) = launch else { return Ok(None) };
    // A kernel that reads its right operand reports what it refuses there.
    match (op, numbers.get(1)) {
        (Op::Pow, Some(Scalar::I64(exponent))) if op.refuses_elements(dtype) && exponent < 0 => {
            return Err(KernelError::NegativeExponent { op, index: 0, exponent });
        }
        (Op::Div | Op::FloorDiv | Op::Remainder, Some(Scalar::I64(0))) if op.refuses_elements(dtype) => {
            return Err(KernelError::DivisionByZero { op, index: 0 });
        }
        _ => {}
    }
    [launch.arguments.value, launch.arguments.counter] = bits;
    Ok(Some(launch))
}

/// The launch that copies `source` to `target`, views of one device's memory; `None` if there are no elements.
///
/// The caller has made the checks of [`Stream::copy`](streamvm_ep::Stream::copy). If both views are contiguous, a plain copy of bytes is
/// faster.
pub fn plan_copy(source: &Operand, target: &Operand) -> Option<Launch> {
    elementwise(KernelName::Copy(source.dtype().size()), [target, source])
}

/// The launch that fills `target`, in a CUDA device's memory, with `value`; `None` if there are no elements.
///
/// # Errors
///
/// Those of [`Stream::fill`](streamvm_ep::Stream::fill) on a CPU.
pub fn plan_fill(target: &Operand, value: Scalar) -> Result<Option<Launch>, Error> {
    check_fill(target, value)?;
    let mut launch = elementwise(KernelName::Fill(target.dtype().size()), [target]);
    if let Some(launch) = &mut launch {
        launch.arguments.value = bits(value, target.dtype())?;
    }
    Ok(launch)
}

/// The bits of `value` as an element of `dtype`.
pub(crate) fn bits(value: Scalar, dtype: DType) -> Result<u64, Error> {
    value.element_bits(dtype).ok_or(Error::ScalarDoesNotFit { value, dtype })
}

/// The launch of an elementwise kernel. The output is the first operand; the inputs broadcast to it.
fn elementwise<const N: usize>(kernel: KernelName, operands: [&Operand; N]) -> Option<Launch> {
    let out = operands[0].layout();
    let elements = out.elements();
    if elements == 0 {
        return None;
    }
    let mut arguments = blank();
    let views: [usize; N] = views();
    for (view, operand) in views.into_iter().zip(operands) {
        arguments.views[view].base = operand.ptr().addr() as u64;
    }
    let axes = elementwise_axes(kernel, operands.map(Operand::layout), elements);
    axes.write_outer(&mut arguments, views);
    let row = axes.innermost();
    let even = |operand: usize| {
        let bytes = operands[operand].dtype().size();
        let aligned = operands[operand].ptr().addr().is_multiple_of((FOUR * bytes).min(16));
        (row.strides[operand] == 1 && aligned) || (row.strides[operand] == 0 && operand > 0)
    };
    let vectors = axes.get().len() == 1 && elements >= FOUR && (0..N).all(even);
    arguments.vectors = vectors.into();
    let threads = if vectors { elements.div_ceil(FOUR) } else { elements };
    Some(launch(kernel, threads.div_ceil(BLOCK as usize), BLOCK, 0, arguments))
}

fn elementwise_axes<const N: usize>(kernel: KernelName, layouts: [&Layout; N], elements: usize) -> Axes<N> {
    let shape = layouts[0].shape();
    let whole = |layout: &Layout| layout.shape() == shape && layout.is_contiguous();
    // Most calls: contiguous operands of one shape, or operands of one element.
    if layouts.iter().all(|layout| whole(layout) || layout.elements() == 1) && whole(layouts[0]) {
        return Axes::single(elements, layouts.map(|layout| usize::from(layout.elements() == elements)));
    }
    // A kernel that can fail reports the row-major index, so its axes must not be reordered.
    let order = if kernel.can_fail() { Order::Unchanged } else { Order::ByStride };
    let rank = shape.rank();
    let axis = |axis| (shape.dims()[axis], layouts.map(|layout| stride_to(layout, axis, rank)));
    Axes::new(order, (0..rank).map(axis))
}

/// The view of each operand, if the output is the first operand: it is the last view.
pub(crate) fn views<const N: usize>() -> [usize; N] {
    std::array::from_fn(|operand| (operand + N - 1) % N)
}

/// Arguments without operands.
pub(crate) fn blank() -> Arguments {
    Arguments {
        views: [View { base: 0, strides: [0; MAX_RANK] }; MAX_VIEWS],
        shape: [1; MAX_RANK],
        inner: [1; MAX_RANK],
        rank: 0,
        inner_rank: 0,
        elements: 0,
        inner_elements: 1,
        value: 0,
        counter: 0,
        status: 0,
        vectors: 0,
        lanes: 0,
        across: 0,
        before: 0,
    }
}

/// A launch of `blocks` blocks, at most [`MAX_BLOCKS`].
pub(crate) fn launch(kernel: KernelName, blocks: usize, block: u32, shared_bytes: u32, arguments: Arguments) -> Launch {
    let blocks = blocks.clamp(1, MAX_BLOCKS) as u32;
    Launch { kernel, grid: [blocks, 1, 1], block: [block, 1, 1], shared_bytes, arguments }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

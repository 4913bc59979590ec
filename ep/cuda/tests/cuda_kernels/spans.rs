//! How many bytes the views of a launch span.

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{KernelName, ReductionState};
use streamvm_ep::{DType, Op};

/// The view that has states, if it is one of the two launches of a reduction.
fn view_of_states(function: KernelName, arguments: &Arguments) -> Option<usize> {
    let is_reduction = matches!(function, KernelName::Op(op, _) if op.is_reduction());
    match arguments.before {
        Arguments::FOLD if is_reduction => Some(1),
        Arguments::JOIN if is_reduction => Some(0),
        _ => None,
    }
}

/// Bytes of an element of each view.
pub(crate) fn sizes(function: KernelName, arguments: &Arguments) -> Vec<usize> {
    let mut sizes = sizes_of_tensors(function, arguments);
    if let (Some(view), Some(state)) = (view_of_states(function, arguments), ReductionState::of(function)) {
        sizes[view] = state.bytes();
    }
    sizes
}

fn sizes_of_tensors(function: KernelName, arguments: &Arguments) -> Vec<usize> {
    match function {
        KernelName::Cast(from, to) => vec![from.size(), to.size()],
        KernelName::Copy(bytes) | KernelName::Pad(bytes) => vec![bytes; 2],
        KernelName::OneHot(from, bytes) => vec![from.size(), bytes],
        KernelName::IndexSelect(from, bytes) => vec![bytes, from.size(), bytes],
        KernelName::Fill(bytes) => vec![bytes],
        KernelName::OfSize(Op::ArgSort, bytes) => vec![bytes, DType::I64.size()],
        KernelName::WithNumbers(op, dtype, places) => {
            let sizes = sizes_of_tensors(KernelName::Op(op, dtype), arguments).into_iter().enumerate();
            sizes.filter(|(input, _)| !places.contains(*input)).map(|(_, size)| size).collect()
        }
        KernelName::OfSize(op, bytes) => by_index(op, arguments, vec![bytes; op.arity() + 1]),
        KernelName::Op(op, dtype) => {
            let mut sizes = vec![dtype.size(); op.arity() + 1];
            match op {
                Op::CrossEntropy | Op::CrossEntropyBackward => sizes[1] = DType::I64.size(),
                Op::Where => sizes[0] = DType::Bool.size(),
                Op::ArgMax | Op::ArgMin => sizes[1] = DType::I64.size(),
                Op::ScatterAdd => sizes = by_index(op, arguments, sizes),
                _ if op.gives_bool() => sizes[op.arity()] = DType::Bool.size(),
                _ => {}
            }
            sizes
        }
    }
}

/// Sizes of elements of an op whose launch says which dtype of indices the second input has, if it has any.
fn by_index(op: Op, arguments: &Arguments, mut sizes: Vec<usize>) -> Vec<usize> {
    if matches!(op, Op::TakeAlongAxis | Op::Scatter | Op::ScatterAdd) {
        sizes[1] = arguments.before as usize;
    }
    sizes
}

/// Bytes from the first element of a view to after its last.
pub(crate) fn span(function: KernelName, arguments: &Arguments, view: usize, size: usize) -> usize {
    if view_of_states(function, arguments) == Some(view) {
        return (arguments.elements * arguments.counter) as usize * size;
    }
    let outer = arguments.rank as usize;
    let mut axes = arguments.shape[..outer].to_vec();
    let inner = &arguments.inner[..arguments.inner_rank as usize];
    match function {
        KernelName::Op(op, _) if op.moves_a_window() => axes = window_axes(op, arguments)[view].to_vec(),
        KernelName::Op(Op::MatMul, _) => {
            let (m, n, k) = (inner[0], inner[1], inner[2]);
            axes.extend([[m, k], [k, n], [m, n]][view]);
        }
        KernelName::Pad(_) if view == 0 => axes = inner.to_vec(),
        KernelName::Pad(_) => {}
        KernelName::OneHot(..) if view == 0 => {}
        KernelName::OfSize(Op::TakeAlongAxis | Op::Scatter, _) | KernelName::Op(Op::ScatterAdd, _) => {
            axes.push(if matches!(view, 0 | 3) { inner[0] } else { inner[1] });
        }
        KernelName::OfSize(Op::ArgSort, _) => axes.push(inner[view]),
        KernelName::IndexSelect(..) => match view {
            0 => axes = inner.to_vec(),
            1 => {}
            _ => axes.push(inner[1]),
        },
        // The output of a reduction has the kept axes alone.
        KernelName::Op(op, _) if op.is_reduction() && view == 1 => {}
        _ => axes.extend(inner),
    }
    if axes.contains(&0) {
        return 0;
    }
    let strides = arguments.views[view].strides;
    let last: i64 = axes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum();
    (last as usize + 1) * size
}

/// The axes of each view of a convolution, a pooling or a gradient of one.
fn window_axes(op: Op, arguments: &Arguments) -> Vec<[i64; 4]> {
    let (inner, groups) = (arguments.inner, (arguments.counter >> 32) as i64);
    let out: [i64; 4] = [0, 1, 2, 3].map(|axis| arguments.shape[axis]);
    let [first, second, ..] = out;
    match op {
        Op::Conv2d => {
            vec![[first, inner[0] * groups, inner[3], inner[4]], [second, inner[0], inner[1], inner[2]], out]
        }
        Op::Conv2dBackwardInput => {
            let outputs = inner[0] * groups;
            vec![out, [outputs, second / groups, inner[1], inner[2]], [first, outputs, inner[3], inner[4]], out]
        }
        Op::Conv2dBackwardWeight => {
            vec![[inner[0], second * groups, inner[3], inner[4]], out, [inner[0], first, inner[1], inner[2]], out]
        }
        _ if op.arity() == 1 => vec![[first, second, inner[2], inner[3]], out],
        _ => vec![out, [first, second, inner[2], inner[3]], out],
    }
}

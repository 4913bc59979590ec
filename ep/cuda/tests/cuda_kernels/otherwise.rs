//! Arguments of the same meaning as those of a launch, which take other ways through its kernel: the planner would not choose them, or only for tensors
//! that are too large for a test.
//!
//! A reduction may have fewer lanes: then each folds more elements, by a loop that the compiler has unrolled.
//!
//! Kernels divide an index by the sizes of axes, with 32 bits where those do and with 64 where not, in loops that the compiler has unrolled. Axes of size 1
//! before the others change nothing but bring every part of such a loop up. The size of what was the outermost axis does not matter as long as no index
//! reaches it; so it, and those before it, can have sizes past 32 bits without as many elements.

use streamvm_cuda::abi::Arguments;
use streamvm_cuda::{KernelName, Launch};
use streamvm_ep::{MAX_RANK, Op};

use crate::tensors::Rng;

/// Past 32 bits, and no product of eight of them is formed.
const LONG: i64 = 1 << 33;

/// Arguments of the same meaning, drawn from the seed.
pub(crate) fn arguments(launch: &Launch, seed: u64) -> Arguments {
    let (mut rng, mut changed) = (Rng(seed ^ 0x5eed), launch.arguments);
    let (outer, inner) = (launch.arguments.rank as usize, launch.arguments.inner_rank as usize);
    // A thread of these computes places from each of the four axes.
    if matches!(launch.kernel, KernelName::Op(op, _) if op.moves_a_window()) {
        return changed;
    }
    let is_pad = matches!(launch.kernel, KernelName::Pad(_));
    // Strides follow those of the outer axes: of the inner axes, of a row and a column, or of none.
    let behind = match launch.kernel {
        KernelName::Op(Op::MatMul, _) => 2,
        KernelName::IndexSelect(..) => 2,
        KernelName::OfSize(Op::TakeAlongAxis | Op::Scatter | Op::ArgSort, _) | KernelName::Op(Op::ScatterAdd, _) => 1,
        _ if is_pad => 0,
        _ => inner,
    };
    let reduces = matches!(launch.kernel, KernelName::Op(op, _) if op.is_reduction());
    let mut spare = MAX_RANK - (outer + behind).min(MAX_RANK);
    let before_outer = rng.below(spare + 1);
    spare -= before_outer;
    let before_inner = if reduces && inner > 0 { rng.below(spare + 1) } else { 0 };
    let is_long = rng.below(2) == 0;
    let size = if is_long { LONG } else { 1 };
    changed.vectors = 0;
    changed.shape = lengthened(launch.arguments.shape, outer, before_outer, size);
    changed.rank = (outer + before_outer) as u32;
    if is_pad {
        // As many axes of the input: the first one is longer only if it has no margins.
        let (shape, inner) = (launch.arguments.shape, launch.arguments.inner);
        changed.inner = lengthened(inner, outer, before_outer, size);
        changed.inner_rank = changed.rank;
        if outer > 0 && shape[0] != inner[0] {
            (changed.shape[before_outer], changed.inner[before_outer]) = (shape[0], inner[0]);
        }
    } else if reduces {
        changed.inner = lengthened(launch.arguments.inner, inner, before_inner, size);
        changed.inner_rank = (inner + before_inner) as u32;
    }
    if matches!(launch.kernel, KernelName::OfSize(Op::Flip, _)) {
        // A flipped axis counts from its end.
        if launch.arguments.before & 1 == 1 && outer > 0 {
            changed.shape[before_outer] = launch.arguments.shape[0];
        }
        changed.before = launch.arguments.before << before_outer;
    }
    // Each lane of a join has one state.
    if changed.lanes > 1 && !(reduces && changed.before == Arguments::JOIN) {
        changed.lanes >>= rng.below(changed.lanes.ilog2() as usize + 1);
    }
    for (number, view) in changed.views.iter_mut().enumerate() {
        // The table of an index_select has strides of a row and a column alone.
        if !(matches!(launch.kernel, KernelName::IndexSelect(..)) && number == 0) {
            view.strides = shifted(view.strides, outer, before_outer, before_inner);
        }
    }
    changed
}

/// Sizes with axes of `size` before them, and the first of the others of that size if that is more than it was.
fn lengthened(sizes: [i64; MAX_RANK], rank: usize, before: usize, size: i64) -> [i64; MAX_RANK] {
    let mut all = [1; MAX_RANK];
    all[..before].fill(size);
    all[before..before + rank].copy_from_slice(&sizes[..rank]);
    if before > 0 && rank > 0 {
        all[before] = all[before].max(size);
    }
    all
}

/// Strides with as many zeros before those of the outer axes and of the inner ones.
fn shifted(strides: [i64; MAX_RANK], outer: usize, before_outer: usize, before_inner: usize) -> [i64; MAX_RANK] {
    let mut all = [0; MAX_RANK];
    for (axis, stride) in strides.into_iter().enumerate() {
        let at = before_outer + axis + if axis < outer { 0 } else { before_inner };
        if at < MAX_RANK {
            all[at] = stride;
        }
    }
    all
}

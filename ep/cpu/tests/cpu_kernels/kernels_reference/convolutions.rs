//! Convolutions that a CPU computes in several parts, beside the reference.

use streamvm_ep::{Convolution, DType, Extra, Op};

use super::{Case, run_case_of};
use crate::tensors::{Pool, View};

/// Ops, the shapes of input, weight and output, and how the window moves.
type Convolutions = (&'static [Op], [[usize; 4]; 3], Convolution);

/// Convolutions that a CPU computes in several parts. By patches, as those of `f64` and with strides, a tile of the patch matrix
/// has 65536 / depth columns, where depth is the number of its rows; `conv2d_backward_input` takes 128 / window channels at a time, and
/// `conv2d_backward_weight` 128 rows. Each last tile begins inside of a line of the output.
fn convolutions_in_parts() -> Vec<Convolutions> {
    let all: &[Op] = &[Op::Conv2d, Op::Conv2dBackwardInput, Op::Conv2dBackwardWeight];
    let input: &[Op] = &[Op::Conv2dBackwardInput];
    let plain = Convolution::default();
    let padded = Convolution { padding: [1, 1], ..plain };
    let uneven = Convolution { stride: [2, 2], padding: [0, 1], dilation: [1, 2], groups: 2 };
    vec![
        // 529 positions in tiles of 455; two parts of the channels, 14 and 2, in tiles of 520; rows 128 and 16, in tiles of 512.
        (all, [[2, 16, 23, 23], [2, 16, 3, 3], [2, 2, 23, 23]], padded),
        // 992 positions in tiles of 910.
        (all, [[1, 8, 33, 34], [2, 8, 3, 3], [1, 2, 31, 32]], plain),
        // 961 positions in tiles of 910, in two groups.
        (all, [[1, 16, 63, 64], [4, 8, 3, 3], [1, 4, 31, 31]], uneven),
        // Parts of 16 channels and 1, because the sums of a part are at most 262144; 16002 positions in tiles of 4096 and 16002.
        (input, [[1, 17, 127, 126], [1, 17, 1, 1], [1, 1, 127, 126]], plain),
    ]
}

/// The elements are few halves, so sums are exact in `f32`, in any order, and an `f16` is rounded once. A part that is left out, or counted twice, changes
/// them by much more than the margin.
#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn convolutions_in_several_tiles_agree_with_the_reference() {
    let mut seed = 7000;
    for (ops, shapes, by) in convolutions_in_parts() {
        for &op in ops {
            let dims = shapes[..op.arity()].iter().map(|dims| dims.to_vec()).collect();
            let case = Case { dims, axes: vec![], keep_dims: false, extra: Extra::Convolution(by) };
            for dtype in [DType::F32, DType::F16, DType::F64] {
                for view in [View::Contiguous, View::Permuted] {
                    seed += 1;
                    run_case_of([Pool::Small; 3], op, dtype, dtype, &case, &[view; 4], seed);
                }
            }
        }
    }
}

//! The parameter of our CUDA kernels: one struct, passed by value, the same for all kernels.
//!
//! `kernels/abi.cuh` defines the same in CUDA C; a test compares sizes and offsets. All fields are plain numbers, and addresses are those
//! of the device. The meaning of the fields depends on the family of the kernel:
//!
//! | family | `shape[..rank]` | `inner[..inner_rank]` | strides of a view |
//! |---|---|---|---|
//! | elementwise, copy, fill | the walked axes | – | one per axis of `shape` |
//! | pad | the output's axes | those of the input, as many | input and output: one per axis of `shape` |
//! | one-hot | the axes of the indices | the class axis | indices: those of `shape`; output: those of `shape`, then that of `inner` |
//! | index_select | the axes of the indices | `[rows, columns]` of the table | table: a row, a column; indices: those of `shape`; output: those of `shape`, then a column |
//! | flip | the output's axes | – | one per axis of `shape` |
//! | tril, triu | the axes of matrices | rows, columns | those of `shape`, then of a row and of a column |
//! | cumsum | the other axes | the axis | those of `shape`, then that of `inner` |
//! | argsort, argtopk | the other axes | the axis, and how many indices of it are given | those of `shape`, then that of the axis |
//! | take_along_axis, scatter, scatter_add | the other axes | the axis of the first input, and of the indices | those of `shape`, then that of the axis |
//! | arange, random | the output's, in their order | – | one per axis of `shape` |
//! | sum, mean, largest, smallest, argmax | the kept axes | the reduced axes | input: those of `shape`, then those of `inner`; output: those of `shape` |
//! | the same, if launched twice | as above | as above | as above; those of the states are 0 |
//! | softmax, log-softmax, their gradients | the other axes | the axis | those of `shape`, then that of `inner` |
//! | layer norm, RMS norm | the other axes | the innermost axis | those of `shape`, then that of `inner`; of weight and bias, the first are 0 |
//! | cross entropy, its gradient | the rows | the classes | those of `shape`, then that of `inner`, which is 0 for what has one element for each row |
//! | conv2d, and the gradient of its input or weight | the output's four, in their order | channels of a group, window, input; output channels of a group, window, output; images, output, input | each has those of its own four axes |
//! | poolings; their gradients | the output's four, in their order | window, input; window, output | each has those of its own four axes |
//! | matmul | the batch axes | `[m, n, k]` | those of `shape`, then of a row and of a column |
//!
//! So `shape` followed by `inner` (for matmul by two of `[m, k]`, `[k, n]`, `[m, n]`) describes each operand again, up to changes that
//! its op cannot observe: axes of size 1 are removed, neighbouring axes that advance evenly in every operand are merged, and the axes of
//! an op that cannot fail may be reordered. Strides of repeated elements are 0. A reduction over no elements has `inner = [0]`. Pad
//! merges only axes without margins.

use streamvm_ep::MAX_RANK;

/// The most operands of a kernel: [`Op::Where`](streamvm_ep::Op::Where), [`Op::LayerNorm`](streamvm_ep::Op::LayerNorm) and [`Op::Scatter`](streamvm_ep::Op::Scatter) have three
/// inputs and one output.
pub const MAX_VIEWS: usize = 4;

/// One operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct View {
    /// Address of the first element.
    pub base: u64,
    /// In elements, one per axis; see the module for which axes. The others are 0.
    pub strides: [i64; MAX_RANK],
}

/// The parameter of every kernel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Arguments {
    /// Inputs that are tensors first, then the output; the others are zeros.
    pub views: [View; MAX_VIEWS],
    /// Sizes of the outer axes, outermost first; see the module. Those past the rank are 1.
    pub shape: [i64; MAX_RANK],
    /// Sizes of the inner axes; see the module. Those past the rank are 1.
    pub inner: [i64; MAX_RANK],
    /// Number of outer axes.
    pub rank: u32,
    /// Number of inner axes: 5 for convolutions, 4 for poolings, 3 for matmul, 2 for index_select, triangles, argsort, argtopk and ops along an axis by indices, 1 for
    /// argmax, softmax, norms, cross entropy, one-hot and cumsum, `rank` for pad. Their gradients have as many.
    pub inner_rank: u32,
    /// Elements of `shape`: the product of its sizes.
    pub elements: u64,
    /// For reductions, softmax, norms, cross entropy and one-hot, and gradients of these: the elements of `inner`, the product of its sizes. Other kernels
    /// do not read it.
    pub inner_elements: u64,
    /// For fill, pad and the first of the numbers among the inputs of an elementwise op, the bits of one element, in the low bytes; for one-hot, those of 1; for norms, those of epsilon as
    /// an `f64`; for random, the seed; for convolutions and poolings, stride and padding, height before width, 16 bits each; for arange, the first
    /// element, an `i64` or the bits of an `f64`; for argsort and argtopk, the bits of infinity, or all bits if elements are no floats; for a reduction that is launched
    /// twice, the inner elements of each part but the last.
    pub value: u64,
    /// The bits of the second number among the inputs of an elementwise op. Random: the first block. Convolutions and poolings: the dilation, height before width, and the number of groups, 16 bits each. Arange: the step, as
    /// `value`. Triangles: the diagonal, an `i64`. Take_along_axis and scatters: the product of the sizes of the axes after the axis. Argsort and argtopk:
    /// the sign bit of an element, or 0 if elements have no sign. Reductions that are launched twice: the number of parts.
    pub counter: u64,
    /// The address of a [`Status`], aligned to 8 bytes, that the device may read and write. With 0 the kernel does not report failures.
    /// [`plan()`](crate::plan()) leaves it 0; the launching code sets it if
    /// [`KernelName::can_fail`](crate::KernelName::can_fail) is true.
    pub status: u64,
    /// 1 if an elementwise kernel may process four elements at a time: `rank` is 1, each stride is 0 or 1 and that of the output 1, and
    /// each operand with stride 1 starts at a multiple of four elements or of 16 bytes, whichever is smaller.
    pub vectors: u32,
    /// Reductions, softmax, norms and cross entropy, and gradients of these: threads that share one output element or one row, a power of two.
    pub lanes: u32,
    /// Reductions, softmax, norms and cross entropy, gradients of these, and take_along_axis: 1 if neighbouring threads work on neighbouring outputs or
    /// rows, 0 if on neighbouring elements of one of them.
    pub across: u32,
    /// For pad: the number of output elements before the input, on each axis whose size in `inner` differs from that in `shape`. For flip: bit `i` is 1 if axis
    /// `i` of `shape` is flipped. For take_along_axis and scatters: the bytes of an index. For argsort and argtopk: 1 if the largest come first. For reductions:
    /// [`FOLD`](Arguments::FOLD), [`JOIN`](Arguments::JOIN), or 0 if one launch does both.
    pub before: u32,
}

impl Arguments {
    /// `before` of a reduction that folds a part of the inner elements of each output. View 1 has the states: as many as outputs for the first part, then those
    /// for the second and so on. The place of a block along the second axis of the grid is its part.
    pub const FOLD: u32 = 1;
    /// `before` of a reduction that joins these states, which are view 0, and finishes. It has at least as many lanes as there are parts.
    pub const JOIN: u32 = 2;
}

/// The failure that a kernel reports. Initially [`Status::CLEAR`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Status {
    /// The smallest row-major index of the output that cannot be computed, for ops that take indices that of the index; `u64::MAX` if there is none.
    pub index: u64,
    /// For integer pow: the negative exponent there. For ops that take indices: the index there. Otherwise unchanged.
    pub value: i64,
}

impl Status {
    /// No failure.
    pub const CLEAR: Status = Status { index: u64::MAX, value: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a struct of `abi.cuh` and their bytes, in order.
    fn fields(name: &str) -> Vec<(String, usize)> {
        let source = include_str!("../kernels/abi.cuh");
        let (_, after) = source.split_once(&format!("struct {name} {{\n")).unwrap();
        let (body, _) = after.split_once("};").unwrap();
        body.lines()
            .map(|line| {
                let (kind, declared) = line.trim().trim_end_matches(';').split_once(' ').unwrap();
                let (field, times) = match declared.split_once('[') {
                    Some((field, "MAX_RANK]")) => (field, MAX_RANK),
                    Some((field, "MAX_VIEWS]")) => (field, MAX_VIEWS),
                    _ => (declared, 1),
                };
                let one = match kind {
                    "u64" | "i64" => 8,
                    "u32" => 4,
                    "View" => size_of::<View>(),
                    kind => panic!("{kind}"),
                };
                (field.to_owned(), one * times)
            })
            .collect()
    }

    macro_rules! same_fields {
        ($name:ident: $($field:ident)*) => {
            let (mut offset, mut fields) = (0, fields(stringify!($name)).into_iter());
            $(
                let (name, bytes) = fields.next().unwrap();
                assert_eq!((&*name, offset), (stringify!($field), std::mem::offset_of!($name, $field)));
                offset += bytes;
            )*
            assert_eq!((fields.next(), offset), (None, size_of::<$name>()));
        };
    }

    #[test]
    fn what_the_kernels_are_given_is_laid_out_as_they_read_it() {
        same_fields!(View: base strides);
        same_fields!(Status: index value);
        same_fields!(Arguments: views shape inner rank inner_rank elements inner_elements value counter status vectors lanes across
            before);
        let source = include_str!("../kernels/abi.cuh");
        assert!(source.contains(&format!("#define MAX_RANK {MAX_RANK}\n#define MAX_VIEWS {MAX_VIEWS}\n")));
        let (fold, join) = (Arguments::FOLD, Arguments::JOIN);
        assert!(source.contains(&format!("#define FOLD {fold}\n#define JOIN {join}\n")));
    }
}

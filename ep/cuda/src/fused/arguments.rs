//! The parameter of a fused kernel; `kernels/abi.cuh` defines the same in CUDA C.

use streamvm_ep::{MAX_RANK, MOST_FUSED_VIEWS};

use crate::abi::View;

/// The parameter of a fused kernel. The parameter of a kernel of N views ends behind the first N.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FusedArguments {
    /// Sizes of the walked axes, outermost first. Those past the rank are 1.
    pub shape: [i64; MAX_RANK],
    /// The product of the sizes.
    pub elements: u64,
    /// Number of axes.
    pub rank: u32,
    /// 1 if the kernel may process four elements at a time, as in [`Arguments::vectors`](crate::abi::Arguments::vectors).
    pub vectors: u32,
    /// The views of the group, in their order.
    pub views: [View; MOST_FUSED_VIEWS],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_parameter_is_laid_out_as_the_kernels_read_it() {
        let source = include_str!("../kernels/abi.cuh");
        let (_, after) = source.split_once("struct FusedArguments {\n").unwrap();
        let (body, _) = after.split_once("};").unwrap();
        let fields: Vec<&str> = body.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(fields, ["i64 shape[MAX_RANK];", "u64 elements;", "u32 rank;", "u32 vectors;", "View views[N];"]);
        let rust = [
            offset_of!(FusedArguments, shape),
            offset_of!(FusedArguments, elements),
            offset_of!(FusedArguments, rank),
            offset_of!(FusedArguments, vectors),
            offset_of!(FusedArguments, views),
        ];
        assert_eq!(rust, [0, 8 * MAX_RANK, 8 * MAX_RANK + 8, 8 * MAX_RANK + 12, 8 * MAX_RANK + 16]);
        // The parameters of a kernel have 4 KiB on every device.
        assert!(size_of::<FusedArguments>() <= 4096);
    }
}

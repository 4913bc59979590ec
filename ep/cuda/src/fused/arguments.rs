//! The parameter of a fused kernel.

use std::mem::offset_of;

use streamvm_ep::{MAX_RANK, MOST_FUSED_VIEWS};

use crate::elementwise::Parameter;
use crate::plan::abi::View;

/// The parameter of a fused kernel. The parameter of a kernel of N views ends after the first N.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FusedArguments {
    /// Sizes of the walked axes, outermost first. Those past the rank are 1.
    pub shape: [i64; MAX_RANK],
    /// The product of the sizes.
    pub elements: u64,
    /// Number of axes.
    pub rank: u32,
    /// 1 if the kernel may process four elements at a time, as in [`Arguments::vectors`](crate::plan::abi::Arguments::vectors).
    pub vectors: u32,
    /// The views of the group, in their order.
    pub views: [View; MOST_FUSED_VIEWS],
}

impl FusedArguments {
    /// Where the fields of the parameter of a kernel of so many views are.
    pub(super) fn parameter(views: usize) -> Parameter {
        Parameter {
            bytes: offset_of!(FusedArguments, views) + views * size_of::<View>(),
            shape: offset_of!(FusedArguments, shape),
            elements: offset_of!(FusedArguments, elements),
            rank: offset_of!(FusedArguments, rank),
            vectors: offset_of!(FusedArguments, vectors),
            views: offset_of!(FusedArguments, views),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameters of a kernel have 4 KiB on every device.
    #[test]
    fn the_parameter_fits() {
        assert!(size_of::<FusedArguments>() <= 4096);
    }
}

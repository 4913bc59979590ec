//! Kernels: what a launch declares to access, and its run in the interpreter of PTX (`tests/ptx`).
//!
//! | file | idea |
//! |---|---|
//! | `code` | decoded modules, and which of their instructions have been reached |
//! | `decode`, `window` | the parameter of one of streamvm's kernels, as operands |
//! | `fused` | the parameter of a fused kernel, as views |
//! | `product` | a product of cuBLAS, as operands: it alone has no PTX, so a kernel of the CPU computes it |
//! | `condition` | the value of a condition of a graph, which a kernel sets |
//! | `own` | a kernel of a caller's own, whose parameters say by their names what it accesses |
//! | `launch` | one launch: the memory that it may access, and what its faults mean |
//!
//! A launch gives the interpreter the parameter, grid and blocks that `cuLaunchKernel` got, and a copy of the bytes that the launch may access, at their
//! addresses. These are the bytes that its decoded parameter declares, which the race detector is told too: so an access of the kernel that the race detector does
//! not know of is a finding. What the kernel has written is copied back.
//!
//! Layer: uses `values` and `memory`; is used by `objects`, `driver`, `commands`, `api` and `tests`.

mod code;
mod condition;
mod decode;
mod fused;
mod launch;
mod own;
mod product;
mod window;

use std::fmt;
use std::sync::Arc;

use streamvm_cuda::{CONDITION_NAME, FUSED_NAME, KernelName};
use streamvm_ep::{DType, Op};

pub(crate) use code::{PtxCode, coverage};
pub(crate) use condition::{ConditionValue, Conditions};
pub(crate) use decode::{Decoding, decode};
pub(crate) use fused::FusedViews;
pub(crate) use launch::{Extent, PtxLaunch, Region, Stopped};
pub(crate) use own::{OwnKernel, OwnMemory};
pub(crate) use product::{Matrix, Product};

/// A kernel without work or parameters, for tests of launches alone.
pub const EMPTY: &str = "standin_empty";

/// A module of PTX with [`EMPTY`] in it.
pub const EMPTY_PTX: &str =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry standin_empty()\n{\n\tret;\n}\n";

/// The object of a function handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// [`EMPTY`].
    Empty,
    /// One of streamvm's kernels.
    Ours(KernelName),
    /// A kernel of an elementwise op that a caller has registered. Its parameter is that of a built-in op over as many tensors.
    Registered { name: Arc<str>, like: KernelName },
    /// A kernel of a caller's own.
    Own(Arc<OwnKernel>),
    /// A kernel that streamvm has made of steps of a program.
    Fused(Arc<FusedViews>),
    /// The kernel that sets the condition of a block.
    Condition,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Empty => f.write_str(EMPTY),
            Kernel::Ours(name) => name.fmt(f),
            Kernel::Registered { name, .. } => name.fmt(f),
            Kernel::Own(kernel) => kernel.name.fmt(f),
            Kernel::Fused(_) => f.write_str(FUSED_NAME),
            Kernel::Condition => f.write_str(CONDITION_NAME),
        }
    }
}

impl Kernel {
    /// The kernel of this name, if the stand-in knows its parameter. That of a fused kernel is known by its module alone.
    pub(crate) fn named(name: &str) -> Option<Kernel> {
        match name {
            EMPTY => Some(Kernel::Empty),
            CONDITION_NAME => Some(Kernel::Condition),
            _ => name.parse().ok().map(Kernel::Ours).or_else(|| Kernel::registered(name)),
        }
    }

    /// The kernel of a registered op, whose name ends in the number of its tensors and their dtype: `sv_softsign_of1_f32`.
    fn registered(name: &str) -> Option<Kernel> {
        let (op, dtype) = name.strip_prefix("sv_")?.rsplit_once('_')?;
        let dtype: DType = dtype.parse().ok()?;
        let like = match op.rsplit_once("_of")?.1 {
            "1" => KernelName::Copy(dtype.size()),
            "2" => KernelName::Op(Op::Max, dtype),
            "3" => KernelName::Op(Op::Clamp, dtype),
            _ => return None,
        };
        Some(Kernel::Registered { name: name.into(), like })
    }
}

/// A dtype with elements of this size, for operands of which only the size is known.
fn dtype_of(bytes: usize) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.size() == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_name() {
        assert_eq!(Kernel::named(EMPTY), Some(Kernel::Empty));
        assert_eq!(Kernel::named("sv_add_f32"), Some(Kernel::Ours("sv_add_f32".parse().unwrap())));
        assert_eq!(Kernel::named("their_kernel"), None);
        let two = Kernel::Registered { name: "sv_half_of_of2_f64".into(), like: "sv_max_f64".parse().unwrap() };
        assert_eq!(Kernel::named("sv_half_of_of2_f64"), Some(two));
        assert_eq!(Kernel::named("sv_half_of_f64"), None);
        assert!(KernelName::all().all(|name| Kernel::named(&name.to_string()) == Some(Kernel::Ours(name))));
    }
}

//! For crates that implement devices and kernels: checks of operands, and the parts of sequences. An engine needs none of these.

pub use crate::call::check;
pub use crate::call::operand::PreparedOperand;
pub use crate::call::step_note::NotedRun;
pub use crate::call::with_numbers::NumberElement;
pub use crate::names::text::listed;
pub use crate::sequence::fused_group::{FusedInput, FusedStep, FusedView, FusedWork};
pub use crate::tensor::sort_key::SortKey;
pub use crate::tensor::window::{ConvolutionForm, WindowAxis, pooling_axes};

/// The parts of sequences, for devices that run the steps by themselves.
pub mod sequence {
    pub use crate::sequence::blocks::{Part, Parts, Rounds, Test};
    pub use crate::sequence::branches::check as check_branches;
    pub use crate::sequence::buffers::{Buffers, PreparedOperands, located, placed};
    pub use crate::sequence::conflicts::check_ordered;
    pub use crate::sequence::finite::first_not_finite;
    pub use crate::sequence::group::check_steps;
    pub use crate::sequence::step::{MOST_OPERANDS, params_of_run};
    pub use crate::sequence::times::PartTime;
}

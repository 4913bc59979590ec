//! Fused kernels: elementwise steps of a program as one CUDA kernel, made when the program is compiled.
//!
//! Layer: uses `plan` and `elementwise`; is used by `instance` and `stream`.
//!
//! | file | idea |
//! |---|---|
//! | `arguments` | the parameter of such a kernel |
//! | `plan` | the launch over given views |
//!
//! A kernel has no shapes, strides or addresses: those are in the parameter. So one kernel serves programs of all shapes. It is [written](crate::elementwise) as a
//! kernel of one op is.

mod arguments;
mod plan;

use streamvm_ep::{Error, FusedGroup};

use crate::elementwise::{self, Steps};

pub use arguments::FusedArguments;
#[cfg(feature = "cuda")]
pub(super) use plan::plan_views;
pub use plan::{FusedLaunch, plan_fused};

/// The name of every fused kernel.
pub const FUSED_NAME: &str = "sv_fused";

/// The PTX of the kernel that computes all steps of the group. Its first lines name the views and steps in comments.
///
/// # Errors
///
/// A number of a fill does not fit its dtype; [`Error::FusedViews`] for steps that are not elementwise ops, copies and fills.
pub fn fused_ptx(group: &FusedGroup) -> Result<String, Error> {
    written(&steps(group)?)
}

/// The steps of the kernel of a group.
pub(crate) fn steps(group: &FusedGroup) -> Result<Steps, Error> {
    Steps::of_group(group, FusedArguments::parameter(group.views.len()))
}

/// The kernel that computes the steps.
pub(crate) fn written(steps: &Steps) -> Result<String, Error> {
    let no_function = || Error::FusedViews(format!("a step has no function for one element:\n{steps}"));
    elementwise::write(FUSED_NAME, steps).ok_or_else(no_function)
}

#[cfg(test)]
#[path = "fused_tests.rs"]
mod tests;

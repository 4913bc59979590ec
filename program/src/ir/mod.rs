//! Programs as data, and their check.
//!
//! Layer: uses no other folder; is used by all other folders except `memory`.
//!
//! Main type: [`Program`](program::Program).

pub(crate) mod check;
pub(crate) mod dims;
pub(crate) mod formula;
pub(crate) mod function;
pub(crate) mod given;
pub(crate) mod program;
pub(crate) mod random;
pub(crate) mod section;
pub(crate) mod shared_layouts;

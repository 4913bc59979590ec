//! Programs as data, and their check.
//!
//! Layer: uses nothing of this crate; is used by `record`, `text` and `compile`.
//!
//! Main type: [`Program`](program::Program).

pub(crate) mod check;
pub(crate) mod program;

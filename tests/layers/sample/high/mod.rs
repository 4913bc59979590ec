//! The layer above.

pub mod second;
pub mod upper;

//! The layer above.

mod upper;

pub use upper::Upper;

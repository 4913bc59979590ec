//! The process that a value belongs to: a child of `fork` has the memory of its parent, and none of its threads.
//!
//! Layer: uses no other folder; is used by no other folder. The crates above use it through the root of this crate.
//!
//! Main types: [`Fork`](fork::Fork), [`PerProcess`](fork::PerProcess).

pub(crate) mod fork;

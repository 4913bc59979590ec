//! Values of tensors outside of the engine, and how they compare.
//!
//! Layer: uses no other folder; is used by `execute`.
//!
//! Main types: a [`Mismatch`](compare::Mismatch) tells where two arrays differ.

pub mod compare;

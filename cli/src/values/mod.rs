//! Values of tensors outside of the engine: how they are held and compared.
//!
//! Layer: uses `base`; is used by `files` and `execute`.
//!
//! Main types: an [`Array`](array::Array) has a shape and elements; a [`Mismatch`](compare::Mismatch) tells where two arrays
//! differ.

pub mod array;
pub mod compare;

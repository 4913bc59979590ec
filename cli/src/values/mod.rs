//! Values of tensors outside of the engine: how they are held, compared and shown.
//!
//! Layer: uses `base`; is used by `files` and `execute`.
//!
//! Main types: an [`Array`](array::Array) has a shape and elements; a [`Mismatch`](compare::Mismatch) tells where two arrays
//! differ; [`show`](show::show) makes the text that `print` writes.

pub mod array;
pub mod compare;
pub mod show;

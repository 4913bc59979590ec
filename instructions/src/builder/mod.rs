//! The instructions builder: checked calls that append instructions to a list.
//!
//! Layer: uses `place`, `lane`, `error`, `engine`, `tensor` and `list`; is used by `eager`.
//!
//! * An [`InstructionsBuilder`](instructions_builder::InstructionsBuilder) builds one list. Ops, copies and memory are in its own
//!   file, callers' functions in [`functions`], and events and barriers in [`sync`]; [`join`] and [`arrange`] copy
//!   tensors into parts of a new one, [`attention`], [`dropout`], [`group_norm`] and [`sort`] are made of ops, and [`copy_stream`] chooses the stream of a copy. Its method
//!   for each op is made beside that of tensors, in `eager/ops.rs`.
//! * A [`BuilderScope`](scope::BuilderScope) is the builder with an option, such as a lane, that ends with the scope.
//! * A [`Generator`](random::Generator) divides the random numbers of one seed among the instructions that draw them.

pub(crate) mod arrange;
mod attention;
pub(crate) mod copy_stream;
mod dropout;
pub(crate) mod functions;
mod group_norm;
pub(crate) mod instructions_builder;
pub(crate) mod join;
pub(crate) mod random;
pub(crate) mod scope;
mod sort;
pub(crate) mod sync;
mod transfers;

//! The eager calls of tensors: each submits its work to the tensor's engine at once.
//!
//! Layer: uses `place`, `lane`, `error`, `engine`, `tensor`, `list` and `builder`; is used by no other folder.
//!
//! * [`calls`] submits ops, copies and reads, and waits for tensors; [`ops`] has a method for each op,
//!   [`arithmetic`] the operators, [`arrange`] what is made of a few copies or ops, [`convolution`] convolutions along one axis, [`display`] the elements as text; [`attention`],
//!   [`dropout`], [`group_norm`] and [`sort`] call what the builder makes of ops.
//! * [`vars`] waits for variables. [`Passed`](passed::Passed) is the future of a wait.

pub(crate) mod arithmetic;
mod arrange;
mod attention;
pub(crate) mod calls;
mod convolution;
mod display;
mod dropout;
mod group_norm;
pub(crate) mod ops;
pub(crate) mod passed;
mod sort;
mod vars;

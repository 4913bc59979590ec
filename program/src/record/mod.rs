//! Recording: eager calls and lists become the steps of a program.
//!
//! Layer: uses `ir`; is used by `text`.
//!
//! A [`Recorder`](recorder::Recorder) hands out tensors that are bound to the recording as other tensors are bound to an engine: the
//! recording implements [`Engine`](streamvm_instructions::Engine). So every eager call and every list over them arrives at
//! [`Recording::add`](recording::Recording::add), which writes it down, and calls on other tensors run as always.

pub(crate) mod bounded;
mod call;
pub(crate) mod engine;
pub(crate) mod recorder;
pub(crate) mod recording;
pub(crate) mod results;
pub(crate) mod steps;

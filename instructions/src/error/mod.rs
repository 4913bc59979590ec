//! The errors of the crate: of building an instruction, of submitting a list, and of waiting for its work.
//!
//! Layer: uses `place`; is used by all other folders but `soft_sync`.
//!
//! * [`BuildError`](build_error::BuildError): an instruction cannot be built; nothing was added to the list.
//! * [`Error`](engine_error::Error): an engine refused a list, or a wait ended without success.
//! * [`ProgramError`](program_error::ProgramError): a call could not be recorded, or a program not compiled or run.
//! * [`Failure`](failure::Failure) and its [`Cause`](failure::Cause): one instruction failed while it ran.

pub(crate) mod build_error;
pub(crate) mod engine_error;
pub(crate) mod failure;
pub(crate) mod program_error;

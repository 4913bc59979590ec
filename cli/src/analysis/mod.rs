//! Analysis of a script before it runs: its errors, the files that it would overwrite, and its plan.
//!
//! Layer: uses `base`, `syntax`, `files` and `emit`; is used by `command`.
//!
//! Main types: [`check`](check::check) finds the errors of a script; a [`Plan`](plan::Plan) is the list of its instructions
//! with the waits and records that order needs; `aliases` refuses to write a file that the command also reads.

pub(crate) mod aliases;
pub mod check;
pub(crate) mod compiled;
pub mod plan;

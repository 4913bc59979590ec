//! From the text of a module to its parts: functions, variables, labels and instructions, each with its line.
//!
//! Layer: uses no other folder; is used by `compute`, `code` and `run`.

pub(crate) mod lexer;
pub(crate) mod parser;
pub(crate) mod runtime;
pub(crate) mod syntax;

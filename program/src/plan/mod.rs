//! What the compiler is told, and what it makes: plain data.
//!
//! Layer: uses `ir`; is used by `show`, `compile` and `jobs`.

pub(crate) mod compiled;
pub(crate) mod costs;
pub(crate) mod mutant;
pub(crate) mod options;

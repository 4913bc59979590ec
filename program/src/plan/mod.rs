//! What the compiler is told, and what it makes: plain data.
//!
//! Layer: uses `ir`; is used by `show` and `compile`.

pub(crate) mod compiled;
pub(crate) mod costs;
pub(crate) mod mutant;
pub(crate) mod options;

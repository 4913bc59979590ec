//! Compiled programs whose kernels were found, and the cache that keeps them.
//!
//! Layer: uses `execute`, `dispatch` and `sync`; is used by `engine`, which owns the cache, and by `programs`, which fills it.
//!
//! Main types: [`LoadedProgram`](loaded::LoadedProgram), [`ProgramCache`](cache::ProgramCache).

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod key;
mod load;
pub(crate) mod loaded;
pub(crate) mod only_kernel;

//! Compiled programs whose kernels were found, and the cache that keeps them.
//!
//! Layer: uses `sync`; is used by `engine`, which owns the cache, and by `programs`, which fills it.
//!
//! Main types: [`LoadedProgram`](loaded::LoadedProgram), [`ProgramCache`](cache::ProgramCache).

pub(crate) mod cache;
pub(crate) mod key;
pub(crate) mod loaded;

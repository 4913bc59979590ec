//! Compiled programs whose kernels were found, and the cache that keeps them.
//!
//! Layer: uses `execute`, `dispatch` and `sync`; is used by `engine`, which owns the cache, and by `programs`, which fills it.
//!
//! * A [`LoadedProgram`](loaded::LoadedProgram) is a compiled program with its prepared segments; `load` has each segment prepared by its device, and [`other_parts`] the steps
//!   in which others have a part there by these.
//! * [`ProgramCache`](cache::ProgramCache) finds it again by its [`key`], and drops what was used least recently.
//! * [`function`] calls functions of the caller, and turns their panics into errors that name the step.
//! * [`only_kernel`] finds programs that are one kernel call, which a run submits as an eager call does.

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod key;
mod load;
pub(crate) mod loaded;
pub(crate) mod only_kernel;
mod other_parts;

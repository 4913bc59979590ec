//! Launches: threads of blocks that run operations over checked memory.
//!
//! Layer: uses `text` and `code`; is used by no other folder.

pub(crate) mod coverage;
pub(crate) mod fault;
pub(crate) mod launch;
pub(crate) mod memory;
mod races;
mod step;
mod thread;

//! What an engine records of a resource: its memory, and whether that was written.

use crate::tasks::memory::Memory;

/// The state of a resource's contents.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// It has memory, and nothing was written.
    Fresh,
    /// Something was written.
    Written,
    /// Its memory was given back; only handles are left.
    Released,
}

/// One resource of the engine.
pub(crate) struct Known {
    pub(crate) memory: Memory,
    pub(crate) contents: Contents,
}

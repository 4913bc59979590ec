//! What an engine records of a resource: its memory, and whether that was written.

use crate::tasks::memory::Memory;

/// The state of a resource's contents.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// It has memory, and nothing was written.
    Fresh,
    /// Something was written.
    Written,
    /// Something was written, and code outside of the engine may read it: a [`Lent`](crate::Lent), or what [owns](crate::engine::owners) it; [`State::loans`](crate::submit::state::State::loans) counts them. Nothing may write it. Its handles have the flag of those that nothing has written, so
    /// each use of it takes the path of a submission that looks here ([`State::change`](crate::submit::state::State::change)).
    Lent,
    /// Its memory was given back; only handles are left.
    Released,
}

/// One resource of the engine.
pub(crate) struct Known {
    pub(crate) memory: Memory,
    pub(crate) contents: Contents,
}

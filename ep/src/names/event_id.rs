//! Names of events.

use std::fmt;

/// Name of an event of one device. Valid until it is released.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct EventId {
    /// Slot in the pool.
    pub index: u32,
    /// How often the slot had been released when this id was acquired.
    pub generation: u32,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}.{}", self.index, self.generation)
    }
}

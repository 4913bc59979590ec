//! Names of actors: the parties whose accesses the race detector orders.

/// A stream or a host thread, as the race detector names it. Valid only for the detector that gave it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ActorId(
    /// Its number among the actors of the detector.
    pub u32,
);

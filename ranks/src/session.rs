//! [`Session`]: the state that the groups of a job share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The state that the groups of a job share.
#[derive(Debug)]
pub(crate) struct Session {
    /// Whether each collective checks that all ranks call the same one, where the backend does not.
    pub(crate) asks: bool,
    /// How long ranks wait for each other on GPUs.
    pub(crate) limit: Duration,
    lanes: AtomicU32,
}

impl Session {
    pub(crate) fn new(asks: bool, limit: Duration) -> Session {
        Session { asks, limit, lanes: AtomicU32::new(0) }
    }

    /// A lane of collective streams for one group, or for the messages from or to one rank.
    pub(crate) fn next_lane(&self) -> u32 {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }
}

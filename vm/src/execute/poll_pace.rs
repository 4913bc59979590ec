//! How often operations are polled: at once while they are young, later with pauses that leave the processor to others.

use std::time::Duration;

use crate::sync::yield_now;

/// Polls with a yield after each. On a machine whose cores are all busy, the thread that the operation waits for runs in between.
const YIELDS: u32 = 2_000;

/// The pause after later polls. An operation that has taken so long loses little by it.
const PAUSE: Duration = Duration::from_micros(50);

/// The pace of polls since something was over last.
#[derive(Default)]
pub(crate) struct PollPace {
    polls: u32,
}

impl PollPace {
    /// Pauses before the next poll: yields the core, or sleeps. Blocks for that long.
    pub(crate) fn pause(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls <= YIELDS || cfg!(any(loom, shuttle)) { yield_now() } else { std::thread::sleep(PAUSE) }
    }

    /// Something was over: the next polls come at once.
    pub(crate) fn restart(&mut self) {
        self.polls = 0;
    }
}

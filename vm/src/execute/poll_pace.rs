//! How often operations are polled: at once while they are young, later with pauses that leave the processor to others.

use std::time::Duration;

use crate::sync::yield_now;

/// This many polls have a yield after each, which takes about 100 ms: a library of communication moves data only while it is polled. On a machine whose cores are all busy, the
/// thread that the operation waits for runs in between. With 2,000 polls an all-reduce of 256 MiB by Open MPI took 1.4 times as long as its own wait, on 2 cores.
const YIELDS: u32 = 200_000;

/// The pause after later polls, which are those of a rank that waits for one that computes.
const PAUSE: Duration = Duration::from_micros(20);

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

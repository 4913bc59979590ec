//! How long the steps of a sequence took in all runs so far.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::call::prepared::SequenceTime;

/// How long all runs of a part took. Several threads may add at once.
#[derive(Debug, Default)]
pub struct PartTime {
    runs: AtomicU64,
    nanoseconds: AtomicU64,
}

impl PartTime {
    /// Adds a run.
    #[inline]
    pub fn add(&self, time: Duration) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The time so far, as that of these steps.
    pub fn read(&self, steps: Range<usize>) -> SequenceTime {
        let time = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed));
        SequenceTime { steps, runs: self.runs.load(Ordering::Relaxed), time }
    }
}

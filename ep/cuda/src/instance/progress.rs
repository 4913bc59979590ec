//! The progress of a stream in the engine's numbers, to narrow down which instruction an error comes from.
//!
//! A device reports that a kernel failed, but not which one. It must be one that was launched and not yet seen to have passed. So each
//! stream stores the last number that was submitted and the last that an event has shown as passed.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The progress of one stream. Written by the thread that submits commands and by threads that see its events. Both numbers only grow, unless the stream
/// goes on with instructions of another stream of the engine. If it has nothing under way, the instructions between its last one and its next one were on other streams.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The engine's number of the stream.
    stream: AtomicU32,
    launched: AtomicU64,
    passed: AtomicU64,
}

impl Progress {
    /// Assigns the next commands to instruction `seq` of the engine's stream.
    #[inline]
    pub(crate) fn begin(&self, stream: u32, seq: u64) {
        let is_idle = self.passed.load(Ordering::Relaxed) >= self.launched();
        if is_idle || self.stream.load(Ordering::Relaxed) != stream {
            self.stream.store(stream, Ordering::Relaxed);
            self.passed.store(seq.saturating_sub(1), Ordering::Relaxed);
        }
        self.launched.store(seq, Ordering::Relaxed);
    }

    /// Stores that everything up to `seq` has passed.
    pub(crate) fn pass(&self, seq: u64) {
        self.passed.fetch_max(seq, Ordering::Relaxed);
    }

    /// The last number submitted.
    #[inline]
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// The instructions that were submitted and not seen to have passed; `None` if there are none.
    pub(crate) fn range(&self) -> Option<InFlight> {
        let (first, last) = (self.passed.load(Ordering::Relaxed) + 1, self.launched());
        (first <= last).then(|| InFlight { stream: self.stream.load(Ordering::Relaxed), first, last })
    }
}

/// Instructions of one stream that were submitted and not seen to have passed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct InFlight {
    stream: u32,
    first: u64,
    last: u64,
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InFlight { stream, first, last } = self;
        if first == last { write!(f, "{stream}:{last}") } else { write!(f, "{stream}:{first} to {stream}:{last}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_been_seen_over_is_a_range() {
        let progress = Progress::default();
        assert_eq!(progress.range(), None);
        (1..=5).for_each(|seq| progress.begin(7, seq));
        assert_eq!(progress.range().map(|range| range.to_string()), Some("7:1 to 7:5".to_owned()));
        progress.pass(4);
        progress.pass(2);
        assert_eq!(progress.range().map(|range| range.to_string()), Some("7:5".to_owned()));
        progress.pass(5);
        assert_eq!(progress.range(), None);
        progress.begin(2, 3);
        assert_eq!(progress.range().map(|range| range.to_string()), Some("2:3".to_owned()));
        progress.pass(3);
        progress.begin(2, 100);
        assert_eq!(progress.range().map(|range| range.to_string()), Some("2:100".to_owned()));
    }
}

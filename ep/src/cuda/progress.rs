//! How far a stream is, in the engine's numbers: what an error without an address is narrowed down by.
//!
//! A device says that some kernel went wrong, not which. It was one that had been launched and had not been seen over, so
//! each stream notes the last number that it has been given and the last that an event has shown.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How far one stream is. Written by whoever gives it commands and whoever sees its events; both only ever rise.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The engine's number of the stream.
    stream: AtomicU32,
    launched: AtomicU64,
    passed: AtomicU64,
}

impl Progress {
    /// The next commands belong to instruction `seq` of the engine's stream.
    #[inline]
    pub(super) fn begin(&self, stream: u32, seq: u64) {
        self.stream.store(stream, Ordering::Relaxed);
        self.launched.store(seq, Ordering::Relaxed);
    }

    /// Everything up to `seq` has been seen over.
    pub(super) fn pass(&self, seq: u64) {
        self.passed.fetch_max(seq, Ordering::Relaxed);
    }

    /// The last number given.
    #[inline]
    pub(super) fn launched(&self) -> u64 {
        self.launched.load(Ordering::Relaxed)
    }

    /// What was given and has not been seen over; `None` if that is nothing.
    pub(super) fn range(&self) -> Option<UnderWay> {
        let (first, last) = (self.passed.load(Ordering::Relaxed) + 1, self.launched());
        (first <= last).then(|| UnderWay { stream: self.stream.load(Ordering::Relaxed), first, last })
    }
}

/// Instructions of one stream that were given and not seen over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct UnderWay {
    stream: u32,
    first: u64,
    last: u64,
}

impl fmt::Display for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnderWay { stream, first, last } = self;
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
    }
}

//! A flight recorder keeps the last events of an engine in memory. The thread of the trace writes them at the first failure, at a stall, or when the program asks
//! ([`TraceConfig::last`](crate::TraceConfig::last)).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use streamvm_stream::StreamId;

use crate::execute::backpressure::Pending;
use crate::observe::stall_report::StalledInstruction;
use crate::observe::timeline_writer::{Noted, StreamFacts, TimelineWriter};
use crate::tasks::memory_use::PoolNews;
use crate::tasks::timeline::Event;

/// The most events that are kept, each of about 150 bytes.
const MOST: usize = 1 << 18;

/// The most changes of memory that are kept, each of a hundredth of a second.
const MOST_OF_MEMORY: usize = 1 << 13;

/// See the module's documentation.
pub(crate) struct FlightRecorder {
    /// The recorder keeps the events of so many nanoseconds before the last end of an instruction: it drops nothing while nothing passes.
    last: u64,
    looks: VecDeque<Look>,
    /// How many events they have.
    events: usize,
    /// When the last end of an instruction was found.
    passed: u64,
    /// The use of memory in the last `last` nanoseconds, with the time of each look.
    memory: VecDeque<(u64, PoolNews)>,
}

/// What was found at one look at what threads have noted.
struct Look {
    at: u64,
    noted: Vec<Noted>,
    pending: Pending,
}

impl Look {
    fn events(&self) -> usize {
        self.noted.iter().map(|(_, events)| events.len()).sum()
    }
}

impl FlightRecorder {
    pub(crate) fn new(last: Duration) -> FlightRecorder {
        let last = u64::try_from(last.as_nanos()).unwrap_or(u64::MAX);
        FlightRecorder { last, looks: VecDeque::new(), events: 0, passed: 0, memory: VecDeque::new() }
    }

    /// Keeps what was noted until `at`, and drops what is too old or too much.
    pub(crate) fn keep(&mut self, at: u64, mut noted: Vec<Noted>, pending: Pending) {
        let is_same = self.looks.back().is_some_and(|look| look.pending == pending);
        if noted.is_empty() && is_same {
            return;
        }
        noted.iter_mut().for_each(|(_, events)| events.shrink_to_fit());
        let ends = |event: &Event| !matches!(event, Event::Blocked(_));
        if noted.iter().any(|(_, events)| events.iter().any(ends)) {
            self.passed = at;
        }
        let look = Look { at, noted, pending };
        self.events += look.events();
        self.looks.push_back(look);
        let since = self.passed.saturating_sub(self.last);
        // The last look stays, however much it has.
        while self.looks.len() > 1
            && let Some(first) = self.looks.pop_front_if(|first| first.at < since || self.events > MOST)
        {
            self.events -= first.events();
        }
    }

    /// Keeps what memory was in use until `at`, and drops what is too old or too much.
    pub(crate) fn keep_memory(&mut self, at: u64, news: Vec<PoolNews>) {
        // The last peaks are known when the trace is written.
        self.memory.extend(news.into_iter().map(|news| (at, PoolNews { peak: None, ..news })));
        let since = at.saturating_sub(self.last);
        while self.memory.len() > MOST_OF_MEMORY || self.memory.front().is_some_and(|(at, _)| *at < since) {
            self.memory.pop_front();
        }
    }

    /// Writes a trace of what is kept, of what is pending at this time, and of the memory in use, with its peak since the engine was built.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write(
        &self,
        out: impl Write,
        now: u64,
        (pending, memory): (&[(StreamId, StalledInstruction)], &[PoolNews]),
        facts: impl Fn(StreamId) -> Option<StreamFacts>,
    ) -> io::Result<()> {
        let mut writer = TimelineWriter::new(out)?;
        let noted = self.looks.iter().flat_map(|look| look.noted.iter().cloned()).collect();
        writer.show(u64::MAX, noted, &facts)?;
        for look in &self.looks {
            writer.count(look.at, look.pending.instructions, look.pending.bytes)?;
        }
        let since = self.looks.front().map_or(now, |look| look.at);
        let kept = self.memory.iter().map(|(_, news)| news);
        kept.chain(memory).try_for_each(|news| writer.memory(news, since))?;
        writer.finish((since, now), pending, facts)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_stream::Point;

    use super::*;
    use crate::tasks::counters::Ended;

    fn ended(count: u64) -> Vec<Noted> {
        let passed = |at| Event::Passed { point: Point::new(StreamId(0), at), at, outcome: Ended::Fine };
        vec![("a thread".to_owned(), (0..count).map(passed).collect())]
    }

    fn pending(instructions: u64) -> Pending {
        Pending { instructions, bytes: 0 }
    }

    fn times(recorder: &FlightRecorder) -> Vec<u64> {
        recorder.looks.iter().map(|look| look.at).collect()
    }

    #[test]
    fn what_is_too_old_is_dropped_when_something_ends() {
        let mut recorder = FlightRecorder::new(Duration::from_nanos(100));
        [10, 50, 120].into_iter().for_each(|at| recorder.keep(at, ended(1), pending(at)));
        assert_eq!(times(&recorder), [50, 120]);
        // Nothing ends: what led to that stays, and a look that found nothing is not kept.
        [500, 600].into_iter().for_each(|at| recorder.keep(at, Vec::new(), pending(3)));
        assert_eq!(times(&recorder), [50, 120, 500]);
        recorder.keep(700, ended(1), pending(3));
        assert_eq!((times(&recorder), recorder.events), (vec![700], 1));
    }

    #[test]
    fn what_is_too_much_is_dropped() {
        let mut recorder = FlightRecorder::new(Duration::MAX);
        let half = MOST as u64 / 2;
        [1, 2].into_iter().for_each(|at| recorder.keep(at, ended(half), pending(at)));
        assert_eq!(times(&recorder), [1, 2]);
        recorder.keep(3, ended(1), pending(3));
        assert_eq!((times(&recorder), recorder.events), (vec![2, 3], MOST / 2 + 1));
        // The last look, whatever it has.
        recorder.keep(4, ended(MOST as u64 + 1), pending(4));
        assert_eq!((times(&recorder), recorder.events), (vec![4], MOST + 1));
    }

    #[test]
    fn the_use_of_memory_is_dropped_by_its_own_time() {
        let mut recorder = FlightRecorder::new(Duration::from_nanos(100));
        let pool = (streamvm_instructions::Place::Host, streamvm_ep::MemoryKind::Pageable);
        let news = || vec![PoolNews { pool, samples: Default::default(), reserved: 0, peak: None }];
        [10, 50, 120].into_iter().for_each(|at| recorder.keep_memory(at, news()));
        assert_eq!(recorder.memory.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [50, 120]);
        (0..2 * MOST_OF_MEMORY).for_each(|_| recorder.keep_memory(130, news()));
        assert_eq!(recorder.memory.len(), MOST_OF_MEMORY);
    }

    #[test]
    fn an_event_is_small() {
        assert!(
            size_of::<Event>() <= 160,
            "{} bytes: the documentation of `TraceConfig::last` says 40 MB",
            size_of::<Event>()
        );
    }
}

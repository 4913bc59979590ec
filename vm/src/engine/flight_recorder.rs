//! A flight recorder keeps the last events of an engine in memory. The thread of the trace writes them at the first failure, at a stall, or when the program asks
//! ([`TraceConfig::last`](crate::TraceConfig::last)).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_stream::StreamId;

use crate::execute::backpressure::Pending;
use crate::observe::stall_report::StalledInstruction;
use crate::observe::timeline_writer::{StreamFacts, TimelineWriter};
use crate::tasks::events::Noted;
use crate::tasks::memory_use::{PoolName, PoolNews};

/// The most entries that are kept, each of up to about 100 bytes, and the most values of memory, each of 32. The last look is kept whole.
const MOST: usize = 1 << 18;

/// See the module's documentation.
pub(crate) struct FlightRecorder {
    /// The recorder keeps the events of so many nanoseconds before the last end of an instruction: it drops nothing while nothing passes.
    last: u64,
    looks: VecDeque<Look>,
    /// How many events they have.
    events: usize,
    /// When the last end of an instruction was found.
    passed: u64,
    /// The use of memory: pools, times, and the bytes in use from then on.
    memory: VecDeque<(PoolName, u64, u64)>,
    /// The bytes that were in use before that.
    before: HashMap<PoolName, u64>,
}

/// What was found at one look at what threads have noted.
struct Look {
    at: u64,
    noted: Noted,
    pending: Pending,
}

impl FlightRecorder {
    pub(crate) fn new(last: Duration) -> FlightRecorder {
        let last = u64::try_from(last.as_nanos()).unwrap_or(u64::MAX);
        FlightRecorder {
            last,
            looks: VecDeque::new(),
            events: 0,
            passed: 0,
            memory: VecDeque::new(),
            before: HashMap::new(),
        }
    }

    /// Keeps what was noted until `at`, and drops what is too old or too much.
    pub(crate) fn keep(&mut self, at: u64, noted: &Noted, pending: Pending) {
        let is_same = self.looks.back().is_some_and(|look| look.pending == pending);
        if noted.len() == 0 && is_same {
            return;
        }
        if noted.ends_something() {
            self.passed = at;
        }
        // A copy has no more room than it needs.
        let look = Look { at, noted: noted.clone(), pending };
        self.events += look.noted.len();
        self.looks.push_back(look);
        let since = self.passed.saturating_sub(self.last);
        // The last look stays, however much it has.
        while self.looks.len() > 1
            && let Some(first) = self.looks.pop_front_if(|first| first.at < since || self.events > MOST)
        {
            self.events -= first.noted.len();
        }
    }

    /// Keeps what memory was in use, and drops what is too old or too much.
    pub(crate) fn keep_memory(&mut self, news: Vec<PoolNews>) {
        for PoolNews { pool, samples, .. } in news {
            self.memory.extend(samples.into_iter().map(|(at, bytes)| (pool, at, bytes)));
        }
        let since = self.passed.saturating_sub(self.last);
        let mut too_many = self.memory.len().saturating_sub(MOST);
        while let Some((pool, _, bytes)) = self.memory.pop_front_if(|(_, at, _)| *at < since || too_many > 0) {
            self.before.insert(pool, bytes);
            too_many = too_many.saturating_sub(1);
        }
    }

    /// The use of a pool from `since` on, with its `last` news.
    fn memory_of(&self, last: PoolNews, since: u64) -> PoolNews {
        let kept = self.memory.iter().filter(|(pool, ..)| *pool == last.pool).map(|(_, at, bytes)| (*at, *bytes));
        let before = self.before.get(&last.pool).map(|bytes| (0, *bytes));
        let mut samples = SmallVec::new();
        for (at, bytes) in before.into_iter().chain(kept).chain(last.samples) {
            // The last value before the trace begins is in force when it does.
            if at <= since {
                samples.clear();
            }
            samples.push((at.max(since), bytes));
        }
        PoolNews { samples, ..last }
    }

    /// Writes a trace of what is kept, of what is pending at this time, and of the memory in use, with its peak since the engine was built.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write(
        &self,
        out: impl Write,
        now: u64,
        (pending, memory): (&[(StreamId, StalledInstruction)], Vec<PoolNews>),
        facts: impl Fn(StreamId) -> Option<StreamFacts>,
    ) -> io::Result<()> {
        let mut writer = TimelineWriter::new(out)?;
        self.looks.iter().for_each(|look| writer.learn(&look.noted.passed, &facts));
        for look in &self.looks {
            writer.show(look.at, &mut look.noted.clone(), &facts)?;
            writer.count(look.at, look.pending.instructions, look.pending.bytes)?;
        }
        let since = self.looks.front().map_or(now, |look| look.at);
        for news in memory {
            writer.memory(&self.memory_of(news, since), since)?;
        }
        writer.finish((since, now), pending, facts)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_stream::Point;

    use super::*;
    use crate::tasks::counters::Ended;
    use crate::tasks::events::Passed;

    fn ended(count: u64) -> Noted {
        let passed =
            |at| Passed { point: Point::new(StreamId(0), at), at, outcome: Ended::Fine, root: None, device: None };
        Noted { passed: (0..count).map(passed).collect(), ..Noted::default() }
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
        [10, 50, 120].into_iter().for_each(|at| recorder.keep(at, &ended(1), pending(at)));
        assert_eq!(times(&recorder), [50, 120]);
        // Nothing ends: what led to that stays, and a look that found nothing is not kept.
        [500, 600].into_iter().for_each(|at| recorder.keep(at, &Noted::default(), pending(3)));
        assert_eq!(times(&recorder), [50, 120, 500]);
        recorder.keep(700, &ended(1), pending(3));
        assert_eq!((times(&recorder), recorder.events), (vec![700], 1));
    }

    #[test]
    fn what_is_too_much_is_dropped() {
        let mut recorder = FlightRecorder::new(Duration::MAX);
        let half = MOST as u64 / 2;
        [1, 2].into_iter().for_each(|at| recorder.keep(at, &ended(half), pending(at)));
        assert_eq!(times(&recorder), [1, 2]);
        recorder.keep(3, &ended(1), pending(3));
        assert_eq!((times(&recorder), recorder.events), (vec![2, 3], MOST / 2 + 1));
        // The last look, whatever it has.
        recorder.keep(4, &ended(MOST as u64 + 1), pending(4));
        assert_eq!((times(&recorder), recorder.events), (vec![4], MOST + 1));
    }

    #[test]
    fn the_use_of_memory_begins_with_what_was_in_use_then() {
        let pool = (streamvm_instructions::Place::Host, streamvm_ep::MemoryKind::Pageable);
        let news = |samples: &[(u64, u64)]| PoolNews { pool, samples: samples.into(), reserved: 7, peak: None };
        let mut recorder = FlightRecorder::new(Duration::from_nanos(100));
        recorder.keep_memory(vec![news(&[(10, 1), (20, 2), (150, 3)])]);
        recorder.keep(200, &ended(1), pending(0));
        recorder.keep_memory(vec![news(&[(190, 4)])]);
        assert_eq!(recorder.memory.len(), 2);
        let told = |since| recorder.memory_of(news(&[(190, 4)]), since).samples.to_vec();
        assert_eq!(told(100), [(100, 2), (150, 3), (190, 4), (190, 4)]);
        assert_eq!(told(160), [(160, 3), (190, 4), (190, 4)]);
        assert_eq!(told(500), [(500, 4)]);
        // Nothing passes: what led to that stays.
        recorder.keep_memory(vec![news(&[(900, 5)])]);
        assert_eq!(recorder.memory.len(), 3);
        recorder.keep_memory(vec![news(&vec![(901, 6); 2 * MOST])]);
        assert_eq!((recorder.memory.len(), recorder.before[&pool]), (MOST, 6));
    }
}

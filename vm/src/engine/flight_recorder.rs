//! What an engine has done lately, kept in memory until somebody wants to see it: at the first failure, at a stall, or when the program asks
//! ([`TraceConfig::last`](crate::TraceConfig::last)).

use std::collections::VecDeque;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use streamvm_stream::StreamId;

use crate::execute::backpressure::Pending;
use crate::observe::stall_report::StalledInstruction;
use crate::observe::timeline_writer::{Noted, StreamFacts, TimelineWriter};

/// The most events that are kept, each of about 150 bytes.
const MOST: usize = 1 << 18;

/// See the module's documentation.
pub(crate) struct FlightRecorder {
    /// For so many nanoseconds what has happened is kept.
    last: u64,
    looks: VecDeque<Look>,
    /// How many events they have.
    events: usize,
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
        FlightRecorder { last, looks: VecDeque::new(), events: 0 }
    }

    /// Keeps what was noted until `at`, and drops what is too old or too much.
    pub(crate) fn keep(&mut self, at: u64, noted: Vec<Noted>, pending: Pending) {
        let is_same = self.looks.back().is_some_and(|look| look.pending == pending);
        if noted.is_empty() && is_same {
            return;
        }
        let look = Look { at, noted, pending };
        self.events += look.events();
        self.looks.push_back(look);
        let since = at.saturating_sub(self.last);
        // The last look stays, however much it has.
        while self.looks.len() > 1
            && let Some(first) = self.looks.pop_front_if(|first| first.at < since || self.events > MOST)
        {
            self.events -= first.events();
        }
    }

    /// Writes a trace of what is kept, and of what is pending at this time.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write(
        &self,
        out: impl Write,
        now: u64,
        pending: &[(StreamId, StalledInstruction)],
        facts: impl Fn(StreamId) -> Option<StreamFacts>,
    ) -> io::Result<()> {
        let mut writer = TimelineWriter::new(BufWriter::new(out))?;
        for look in &self.looks {
            writer.show(look.at, look.noted.clone(), &facts)?;
            writer.count(look.at, look.pending.instructions, look.pending.bytes)?;
        }
        writer.finish(now, pending, facts)
    }
}

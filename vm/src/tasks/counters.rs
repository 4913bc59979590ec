//! Counters of a profile: per operation and stream, how often it ran, how long it was queued and how long it ran.
//!
//! They exist only in an engine with [`VmBuilder::profile`]. There, and in one that is traced, the submitter stamps each instruction that has something to run,
//! and the thread that runs it counts it in its own [`OpCounters`], so that workers do not contend for a lock.
//!
//! [`VmBuilder::profile`]: crate::VmBuilder::profile

use std::time::{Duration, Instant};

use hashbrown::{Equivalent, HashMap};
use hdrhistogram::Histogram;
use streamvm_ep::Scope;
use streamvm_stream::StreamId;

use crate::tasks::task::Task;

/// Names, each in each of its scopes, that one thread counts separately; further ones are counted under [`OTHERS`]. Each name costs about 30 kB: two histograms
/// of durations up to seconds.
const NAMES: usize = 256;

/// The name under which operations beyond [`NAMES`] are counted.
pub(crate) const OTHERS: &str = "(other names)";

/// Significant decimal digits of a duration in a histogram.
const DIGITS: u8 = 2;

/// When an instruction was submitted, and when its action began, if it did.
#[derive(Copy, Clone)]
pub(crate) struct Stamp {
    pub(crate) submitted: Instant,
    pub(crate) started: Option<Instant>,
    /// Whether it has something to run: others are stamped for a trace alone.
    pub(crate) runs: bool,
}

/// How an instruction ended.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Fine,
    Failed,
    /// It inherited the failure of another instruction.
    PassedOn,
}

/// What one thread has run.
#[derive(Default)]
pub(crate) struct OpCounters {
    by_op: HashMap<Op, OpCounter>,
}

/// The key of a counter.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) stream: StreamId,
    pub(crate) scope: Option<Scope>,
    pub(crate) name: Box<str>,
}

#[derive(Hash)]
struct OpRef<'a> {
    stream: StreamId,
    scope: Option<Scope>,
    name: &'a str,
}

impl Equivalent<Op> for OpRef<'_> {
    fn equivalent(&self, op: &Op) -> bool {
        self.stream == op.stream && self.scope == op.scope && *self.name == *op.name
    }
}

/// The counts of one operation on one stream.
#[derive(Clone, Default)]
pub(crate) struct OpCounter {
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) queued: Span,
    pub(crate) ran: Span,
}

impl OpCounters {
    /// Counts an instruction that has just ended and has a stamp.
    ///
    /// # Errors
    /// Why a duration could not be counted. The caller logs that without the lock of the counters, because loggers are user code.
    pub(crate) fn add(&mut self, task: &Task, stamp: Stamp, ended: Ended) -> Result<(), String> {
        let stream = task.point.stream;
        let mut op = OpRef { stream, scope: task.site.scope(), name: task.name() };
        if self.by_op.len() >= NAMES && !self.by_op.contains_key(&op) {
            (op.scope, op.name) = (None, OTHERS);
        }
        let OpRef { scope, name, .. } = op;
        let counter = match self.by_op.get_mut(&op) {
            Some(counter) => counter,
            None => self.by_op.entry(Op { stream, scope, name: name.into() }).or_default(),
        };
        match (stamp.started, ended) {
            (None, Ended::Failed | Ended::PassedOn) => counter.skipped += 1,
            (Some(started), ended) => {
                counter.failed += u64::from(ended == Ended::Failed);
                let queued = counter.queued.add(started.saturating_duration_since(stamp.submitted));
                return counter.ran.add(started.elapsed()).and(queued);
            }
            // Its action was removed before it started.
            (None, Ended::Fine) => {}
        }
        Ok(())
    }

    /// All counters, by op.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Op, &OpCounter)> {
        self.by_op.iter()
    }
}

/// The durations of one kind.
#[derive(Clone, Default)]
pub(crate) struct Span {
    pub(crate) total: Duration,
    pub(crate) min: Duration,
    pub(crate) max: Duration,
    /// Durations in nanoseconds; grows with the longest.
    histogram: Option<Histogram<u32>>,
}

impl Span {
    fn add(&mut self, time: Duration) -> Result<(), String> {
        self.min = if self.count() == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.total += time;
        let histogram = match &mut self.histogram {
            Some(histogram) => histogram,
            none => match Histogram::new(DIGITS) {
                Ok(histogram) => none.insert(histogram),
                Err(error) => return Err(error.to_string()),
            },
        };
        histogram
            .record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            .map_err(|error| format!("{time:?}: {error}"))
    }

    /// The number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::len)
    }

    /// The duration that the fraction `part` of all durations does not exceed, to [`DIGITS`] digits.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        let nanos = self.histogram.as_ref().map_or(0, |histogram| histogram.value_at_quantile(part));
        Duration::from_nanos(nanos).clamp(self.min, self.max)
    }

    /// Adds the durations of another thread.
    ///
    /// # Errors
    /// Why they could not be counted.
    pub(crate) fn merge(&mut self, other: &Span) -> Result<(), String> {
        if other.count() == 0 {
            return Ok(());
        }
        self.min = if self.count() == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.total += other.total;
        match (&mut self.histogram, &other.histogram) {
            (Some(histogram), Some(more)) => return histogram.add(more).map_err(|error| error.to_string()),
            (none, more) => none.clone_from(more),
        }
        Ok(())
    }
}

impl OpCounter {
    /// Adds the counter of another thread.
    ///
    /// # Errors
    /// Why durations could not be counted.
    pub(crate) fn merge(&mut self, other: &OpCounter) -> Result<(), String> {
        self.failed += other.failed;
        self.skipped += other.skipped;
        let queued = self.queued.merge(&other.queued);
        self.ran.merge(&other.ran).and(queued)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn span(micros: impl IntoIterator<Item = u64>) -> Span {
        let mut span = Span::default();
        micros.into_iter().for_each(|micros| span.add(Duration::from_micros(micros)).expect("it is counted"));
        span
    }

    fn near(found: Duration, micros: u64) -> bool {
        found.abs_diff(Duration::from_micros(micros)) * 50 <= Duration::from_micros(micros)
    }

    #[test]
    fn quantiles_are_within_two_hundredths_and_extremes_and_totals_exact() {
        let span = span((1..=1000).rev());
        assert_eq!((span.count(), span.min, span.max), (1000, Duration::from_micros(1), Duration::from_millis(1)));
        assert_eq!(span.total, Duration::from_micros(500_500));
        assert!(near(span.quantile(0.5), 500) && near(span.quantile(0.99), 990), "{:?}", span.quantile(0.99));
    }

    #[test]
    fn spans_of_several_threads_are_those_of_one() {
        let (mut all, empty) = (Span::default(), Span::default());
        for part in [&empty, &span(1..=400), &empty, &span(401..=1000)] {
            all.merge(part).expect("it is counted");
        }
        let one = span(1..=1000);
        assert_eq!((all.count(), all.min, all.max, all.total), (one.count(), one.min, one.max, one.total));
        assert_eq!(all.quantile(0.5), one.quantile(0.5));
        assert_eq!(Span::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn names_without_end_are_counted_together() {
        let (mut op_counters, mut task) = (OpCounters::default(), Task::empty());
        let now = Instant::now();
        for number in 0..NAMES + 7 {
            task.cold_mut().name = Some(format!("file {number}").into());
            let stamp = Stamp { submitted: now, started: Some(now), runs: true };
            op_counters.add(&task, stamp, Ended::Fine).expect("it is counted");
        }
        task.cold_mut().name = Some("file 3".into());
        op_counters
            .add(&task, Stamp { submitted: now, started: None, runs: true }, Ended::Failed)
            .expect("it is counted");
        let of = |name: &str| op_counters.iter().find(|(op, _)| &*op.name == name).map(|(_, counter)| counter);
        assert_eq!(of(OTHERS).map(|counter| counter.ran.count()), Some(7));
        assert_eq!(of("file 3").map(|counter| (counter.ran.count(), counter.skipped)), Some((1, 1)));
        assert_eq!(op_counters.iter().count(), NAMES + 1);
    }
}

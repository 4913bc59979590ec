//! Profiles: what an engine has run, how long it waited and how long it took.

use std::fmt;
use std::time::Duration;

use hashbrown::HashMap;
use streamvm_stream::StreamKey;

use crate::shared::Shared;
use crate::sync::unpoisoned;
use crate::tally::{Span, Tally};

/// What has run since the engine was built; see [`Vm::profile`](crate::Vm::profile). Printed, it is a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// Each op or function on each stream; what took the longest in all comes first.
    pub ops: Vec<OpProfile>,
}

/// One op or function on one stream. The functions of a bulk are one function, `bulk`; a copy that is staged is one instruction for
/// each piece, on each of its streams. On a device that runs commands later all is counted when a command was launched, so failures
/// that it tells of later, and what is skipped for them, are not in it: those are told to whoever waits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpProfile {
    /// Its name. What has more names than a profile tells apart, 256 a thread, is `(other names)`.
    pub name: String,
    /// The stream.
    pub stream: StreamKey,
    /// How many were begun.
    pub count: u64,
    /// How many of these failed.
    pub failed: u64,
    /// How many were not begun, because something that they read had failed, or their device was lost.
    pub skipped: u64,
    /// From submission until it was begun.
    pub queued: Times,
    /// From there until it was over: for an asynchronous function until its handle was used and a worker has seen to that. On
    /// a device that runs commands later: until it was launched. A trace tells when a GPU ran it.
    pub ran: Times,
    /// Who ran it, by name.
    pub workers: Vec<WorkerProfile>,
}

/// What one thread has done for one op.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerProfile {
    /// The thread's name; `inline` where submitters run what they submit.
    pub worker: String,
    /// How many it has run.
    pub count: u64,
    /// How long that took; of an asynchronous function all of it counts for the worker that has seen its end.
    pub total: Duration,
}

/// Durations; all zero if there are none.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Their sum.
    pub total: Duration,
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
    /// What half of them do not exceed, to two digits.
    pub p50: Duration,
    /// What 99 in 100 of them do not exceed, to two digits.
    pub p99: Duration,
}

impl Times {
    fn of(span: &Span) -> Times {
        let Span { total, min, max, .. } = *span;
        Times { total, min, max, p50: span.quantile(0.5), p99: span.quantile(0.99) }
    }
}

impl Shared {
    /// What all threads have counted. Takes the lock of one after the other, so it may be made while they work.
    pub(crate) fn profile(&self) -> Profile {
        let mut by_op: HashMap<(StreamKey, Box<str>), (Tally, Vec<WorkerProfile>)> = HashMap::new();
        for context in self.threads.contexts() {
            for (op, tally) in unpoisoned(context.tallies.lock()).iter() {
                let Some(entry) = self.streams.get(op.stream) else { continue };
                let (all, workers) = by_op.entry((entry.key, op.name.clone())).or_default();
                all.merge(tally);
                let (worker, count, total) = (context.name.clone(), tally.ran.count(), tally.ran.total);
                workers.extend((count > 0).then_some(WorkerProfile { worker, count, total }));
            }
        }
        let op = |((stream, name), (tally, workers)): ((StreamKey, Box<str>), (Tally, Vec<WorkerProfile>))| {
            let Tally { failed, skipped, queued, ran } = tally;
            let (count, queued, ran) = (ran.count(), Times::of(&queued), Times::of(&ran));
            let mut op = OpProfile { name: name.into(), stream, count, failed, skipped, queued, ran, workers };
            op.workers.sort_by(|a, b| a.worker.cmp(&b.worker));
            op
        };
        let mut ops: Vec<OpProfile> = by_op.into_iter().map(op).collect();
        let rank = |op: &OpProfile| (std::cmp::Reverse(op.ran.total), op.stream.to_string(), op.name.clone());
        ops.sort_by_cached_key(rank);
        Profile { ops }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: [&str; 12] = [
            "op",
            "stream",
            "count",
            "failed",
            "skipped",
            "queued p50",
            "p99",
            "ran total",
            "min",
            "p50",
            "p99",
            "max",
        ];
        let line = |op: &OpProfile| {
            let counts = [op.count, op.failed, op.skipped].map(|count| count.to_string());
            let Times { total, min, max, p50, p99 } = op.ran;
            let times = [op.queued.p50, op.queued.p99, total, min, p50, p99, max].map(brief);
            [op.name.clone(), op.stream.to_string()].into_iter().chain(counts).chain(times).collect()
        };
        let head: Vec<String> = HEAD.map(str::to_owned).to_vec();
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(self.ops.iter().map(line)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; HEAD.len()] = std::array::from_fn(width);
        for line in &lines {
            let [name, stream, others @ ..] = line.as_slice() else { continue };
            write!(f, "{name:<0$}  {stream:<1$}", widths[0], widths[1])?;
            for (text, width) in others.iter().zip(&widths[2..]) {
                write!(f, "  {text:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A duration in three digits.
fn brief(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        _ if nanos < 999.5 => return format!("{nanos:.0} ns"),
        _ if nanos < 999.5e3 => (nanos / 1e3, "µs"),
        _ if nanos < 999.5e6 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use streamvm_ep::DeviceId;
    use streamvm_stream::StreamType;

    use super::*;

    #[test]
    fn a_duration_has_three_digits() {
        let nanos = [0, 7, 999, 1_000, 9_994, 9_996, 99_940, 99_960, 999_400, 999_600, 12_345_678, 90_000_000_000];
        let texts: Vec<String> = nanos.into_iter().map(|nanos| brief(Duration::from_nanos(nanos))).collect();
        let expected = [
            "0 ns", "7 ns", "999 ns", "1.00 µs", "9.99 µs", "10.0 µs", "99.9 µs", "100 µs", "999 µs", "1.00 ms",
            "12.3 ms", "90.0 s",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_profile_is_an_aligned_table() {
        let micros = Duration::from_micros;
        let ran = Times { total: micros(30), min: micros(9), max: micros(11), p50: micros(10), p99: micros(11) };
        let stream = StreamKey::new(DeviceId::cpu(0), StreamType::Workers, 0);
        let op = |name: &str, count| OpProfile {
            name: name.into(),
            stream,
            count,
            failed: 1,
            skipped: 20,
            queued: Times::default(),
            ran,
            workers: Vec::new(),
        };
        let text = Profile { ops: vec![op("hash", 3), op("write back", 1000)] }.to_string();
        let expected = "\
op          stream           count  failed  skipped  queued p50   p99  ran total      min      p50      p99      max
hash        workers@cpu:0:0      3       1       20        0 ns  0 ns    30.0 µs  9.00 µs  10.0 µs  11.0 µs  11.0 µs
write back  workers@cpu:0:0   1000       1       20        0 ns  0 ns    30.0 µs  9.00 µs  10.0 µs  11.0 µs  11.0 µs
";
        assert_eq!(text, expected);
    }
}

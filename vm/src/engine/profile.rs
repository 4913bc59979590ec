//! Profiles: how often an engine has run each op and function, how long these were queued, and how long they ran.
//!
//! Each thread context and worker has counters of its own ([`OpCounter`]) behind a lock. The thread that runs it takes the lock, and so do a
//! caller that helps and a reader of the profile (`docs/adr/profiles-and-instrumentation.md`). A profile merges all counters.

use std::fmt;
use std::time::Duration;

use hashbrown::HashMap;
use streamvm_ep::Scope;
use streamvm_program::Costs;
use streamvm_stream::{StreamKey, StreamType};

use crate::engine::core::Engine;
use crate::sync::unpoisoned;
use crate::tasks::counters::{OpCounter, Span};

/// What has run since the engine was built; see [`Vm::profile`](crate::Vm::profile). [`Display`](fmt::Display) prints an aligned
/// table, one row per op, stream and scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Profile {
    /// One entry for each op or function on each stream in each scope, sorted by the total time that it ran, longest first.
    pub ops: Vec<OpProfile>,
}

/// One op or function on one stream.
///
/// * The functions of one instruction of a [`Bulk`](crate::Bulk) count as one function named `bulk`.
/// * A staged copy counts as one instruction for each piece, on each of its streams.
/// * On a device that runs commands later, an instruction is counted when it is launched. Failures that the device reports
///   later, and instructions skipped because of those, are not counted here; waits return them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpProfile {
    /// The name of the op or function. A thread counts 256 pairs of a name and a scope apart; it counts all further ones as `(other names)`, outside of scopes.
    pub name: String,
    /// The [scope](crate::scope) in which it was issued, such as `encoder > layer 3`; empty outside of all scopes.
    pub scope: String,
    /// The stream that it ran on.
    pub stream: StreamKey,
    /// How many instructions were begun.
    pub count: u64,
    /// How many of these failed.
    pub failed: u64,
    /// How many were not begun, because an instruction that they read from had failed, or their device was lost.
    pub skipped: u64,
    /// The time from submission until the instruction was begun.
    pub queued: Times,
    /// The time from its begin until it was over. An asynchronous function is over when its handle was used and a worker has
    /// handled that. On a device that runs commands later, the time ends when the instruction is launched; a trace
    /// (`VmBuilder::record`, with the feature `sim`) has the times when a GPU ran it.
    pub ran: Times,
    /// The threads that ran it, sorted by name.
    pub workers: Vec<WorkerProfile>,
}

/// What one thread has run of one op or function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerProfile {
    /// The name of the thread; `inline` in [`Mode::Inline`](crate::Mode::Inline), where submitting threads run instructions.
    pub worker: String,
    /// How many instructions it has run.
    pub count: u64,
    /// How long these took together. The whole time of an asynchronous function counts for the worker that handled its end.
    pub total: Duration,
}

/// The distribution of a set of durations; all zero if the set is empty.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Their sum.
    pub total: Duration,
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
    /// The median, to two significant digits.
    pub p50: Duration,
    /// The 99th percentile, to two significant digits.
    pub p99: Duration,
}

impl Times {
    fn of(span: &Span) -> Times {
        let Span { total, min, max, .. } = *span;
        Times { total, min, max, p50: span.quantile(0.5), p99: span.quantile(0.99) }
    }
}

/// What has a row of its own.
type Counted = (StreamKey, Option<Scope>, Box<str>);

impl Engine {
    /// Merges the counters of all threads. Takes their locks one after the other, so threads may work meanwhile.
    pub(crate) fn profile(&self) -> Profile {
        let mut by_op: HashMap<Counted, (OpCounter, Vec<WorkerProfile>)> = HashMap::new();
        let mut refused = None;
        for context in self.contexts.all() {
            for (op, counter) in unpoisoned(context.op_counters.lock()).iter() {
                let Some(stream) = self.streams.get(op.stream) else { continue };
                let (all, workers) = by_op.entry((stream.key, op.scope, op.name.clone())).or_default();
                refused = all.merge(counter).err().or(refused);
                let (worker, count, total) = (context.name.clone(), counter.ran.count(), counter.ran.total);
                workers.extend((count > 0).then_some(WorkerProfile { worker, count, total }));
            }
        }
        // Without a lock, because loggers are user code.
        if let Some(reason) = refused {
            log::error!("the durations of a thread are not counted: {reason}");
        }
        let op = |((stream, scope, name), (counter, workers)): (Counted, (OpCounter, Vec<WorkerProfile>))| {
            let OpCounter { failed, skipped, queued, ran } = counter;
            let (count, queued, ran) = (ran.count(), Times::of(&queued), Times::of(&ran));
            let scope = scope.map(|scope| scope.to_string()).unwrap_or_default();
            let mut op = OpProfile { name: name.into(), scope, stream, count, failed, skipped, queued, ran, workers };
            op.workers.sort_by(|a, b| a.worker.cmp(&b.worker));
            op
        };
        let mut ops: Vec<OpProfile> = by_op.into_iter().map(op).collect();
        let rank = |op: &OpProfile| {
            (std::cmp::Reverse(op.ran.total), op.stream.to_string(), op.name.clone(), op.scope.clone())
        };
        ops.sort_by_cached_key(rank);
        Profile { ops }
    }
}

impl Profile {
    /// The mean times of ops and functions on compute streams that threads of the host run, which are those of CPUs, as costs by which the compiler of programs spreads steps over lanes
    /// ([`CompileOptions::costs`](streamvm_program::CompileOptions::costs)). A profile has no sizes, so a time counts for all of them, where no cost of a
    /// size is known. On other devices a profile has the times of launches alone, which are left out. Runs of programs count under the name of the program, or of its op if it is one kernel call: give a program
    /// another name than an op or a function. [`Executable::costs`](crate::Executable::costs) has the times of functions that are steps of a segment.
    pub fn costs(&self) -> Costs {
        let mut all: HashMap<&str, (u64, Duration)> = HashMap::new();
        for op in &self.ops {
            let StreamKey { device, stream_type, .. } = op.stream;
            if device.kind.is_run_by_host() && stream_type == StreamType::Compute {
                let known = all.entry(&op.name).or_default();
                *known = (known.0 + op.count, known.1 + op.ran.total);
            }
        }
        let mut costs = Costs::default();
        for (name, (count, total)) in all {
            let mean = total.as_nanos().checked_div(u128::from(count)).and_then(|mean| u64::try_from(mean).ok());
            mean.into_iter().for_each(|mean| costs.set_all_sizes(name, Duration::from_nanos(mean)));
        }
        costs
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
            let name = if op.scope.is_empty() { op.name.clone() } else { format!("{} in {}", op.name, op.scope) };
            [name, op.stream.to_string()].into_iter().chain(counts).chain(times).collect()
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

/// Formats a duration with three significant digits and a unit from ns to s.
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
            scope: if count > 999 { "epoch".into() } else { String::new() },
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
op                   stream           count  failed  skipped  queued p50   p99  ran total      min      p50      p99      max
hash                 workers@cpu:0:0      3       1       20        0 ns  0 ns    30.0 µs  9.00 µs  10.0 µs  11.0 µs  11.0 µs
write back in epoch  workers@cpu:0:0   1000       1       20        0 ns  0 ns    30.0 µs  9.00 µs  10.0 µs  11.0 µs  11.0 µs
";
        assert_eq!(text, expected);
    }
}

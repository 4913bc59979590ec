//! Two runs beside each other.

use std::cmp::Reverse;
use std::fmt::{self, Display, Formatter};

use hashbrown::HashMap;
use serde::Serialize;

use crate::report::Report;
use crate::text::{Bytes, Ns};

/// Two reports, and what is different.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The first run.
    pub before: Report,
    /// The second run.
    pub after: Report,
    /// Parts of the run whose times differ, the most different first.
    pub changes: Vec<Change>,
    /// The memory of both, where a peak is another one.
    pub memory: Vec<MemoryChange>,
}

/// The most memory in use, of one place and kind; 0 in a run that had none of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct MemoryChange {
    /// Which, such as `device memory on cpu:0`.
    pub pool: String,
    /// In the first run.
    pub before_bytes: u64,
    /// In the second run.
    pub after_bytes: u64,
}

/// A part of a run whose time is another one in the second run. Of a part that one run lacks, or that is not among its longest, its time there is 0.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// A time of a stream, or a group of the critical path.
    pub what: String,
    /// In the first run, in nanoseconds.
    pub before_ns: u64,
    /// In the second run.
    pub after_ns: u64,
}

impl Comparison {
    /// Compares two runs.
    pub fn of(before: Report, after: Report) -> Comparison {
        let mut times: HashMap<String, [u64; 2]> = HashMap::new();
        for (run, report) in [&before, &after].into_iter().enumerate() {
            let mut add = |what: String, ns: u64| {
                let time = &mut times.entry(what).or_default()[run];
                *time = time.saturating_add(ns);
            };
            for it in &report.streams {
                let parts = [
                    ("busy", it.busy_ns),
                    ("waiting", it.waiting_ns),
                    ("not submitted", it.not_submitted_ns),
                    ("host waits", it.host_waits_ns),
                    ("held", it.held_ns),
                    ("late", it.late_ns),
                ];
                parts.into_iter().for_each(|(part, ns)| add(format!("{}, {part}", it.stream), ns));
            }
            let path = &report.critical_path;
            add("critical path, host".into(), path.host_ns);
            add("critical path, late".into(), path.late_ns);
            path.groups.iter().for_each(|it| add(format!("critical path, {}", it.of), it.ns));
        }
        let change = |(what, [before_ns, after_ns]): (String, [u64; 2])| Change { what, before_ns, after_ns };
        let mut changes: Vec<Change> = times.into_iter().map(change).collect();
        changes.retain(|it| it.before_ns != it.after_ns);
        changes.sort_by(|one, other| {
            let key = |it: &Change| Reverse(it.before_ns.abs_diff(it.after_ns));
            key(one).cmp(&key(other)).then_with(|| one.what.cmp(&other.what))
        });
        let memory = memory(&before, &after);
        Comparison { before, after, changes, memory }
    }
}

fn memory(before: &Report, after: &Report) -> Vec<MemoryChange> {
    let peak =
        |report: &Report, pool: &str| report.memory.iter().find(|it| it.pool == pool).map_or(0, |it| it.peak_bytes);
    let mut pools: Vec<&str> = before.memory.iter().chain(&after.memory).map(|it| it.pool.as_str()).collect();
    pools.sort_unstable();
    pools.dedup();
    let change = |pool: &str| MemoryChange {
        pool: pool.to_owned(),
        before_bytes: peak(before, pool),
        after_bytes: peak(after, pool),
    };
    pools.into_iter().map(change).filter(|it| it.before_bytes != it.after_bytes).collect()
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.before.total_ns, self.after.total_ns);
        writeln!(f, "{:>10} {:>10} {:>8}", "before", "after", "")?;
        let ratio = |before: u64, after: u64| match before {
            0 => "new".to_owned(),
            _ => format!("× {:.2}", after as f64 / before as f64),
        };
        let mut line = |before: u64, after: u64, what: &str| {
            writeln!(f, "{:>10} {:>10} {:>8}  {what}", Ns(before), Ns(after), ratio(before, after))
        };
        line(before, after, "the run")?;
        self.changes.iter().take(20).try_for_each(|it| line(it.before_ns, it.after_ns, &it.what))?;
        for MemoryChange { pool, before_bytes, after_bytes } in &self.memory {
            let (before, after, ratio) =
                (Bytes(*before_bytes), Bytes(*after_bytes), ratio(*before_bytes, *after_bytes));
            writeln!(f, "{before:>10} {after:>10} {ratio:>8}  {pool}, peak")?;
        }
        Ok(())
    }
}

//! Two runs beside each other.

use std::cmp::Reverse;
use std::fmt::{self, Display, Formatter};

use hashbrown::HashMap;
use serde::Serialize;

use crate::report::Report;
use crate::text::Ns;

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
        Comparison { before, after, changes }
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.before.total_ns, self.after.total_ns);
        writeln!(f, "{:>10} {:>10} {:>8}", "before", "after", "")?;
        let mut line = |before: u64, after: u64, what: &str| {
            let ratio = if before == 0 { "new".into() } else { format!("× {:.2}", after as f64 / before as f64) };
            writeln!(f, "{:>10} {:>10} {ratio:>8}  {what}", Ns(before), Ns(after))
        };
        line(before, after, "the run")?;
        self.changes.iter().take(20).try_for_each(|it| line(it.before_ns, it.after_ns, &it.what))
    }
}

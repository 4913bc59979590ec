//! Counts of processor instructions, compared with committed counts.
//!
//! Unlike a time, a count is the same from run to run, so it shows a path that grew by a few instructions. The benchmark `instructions`
//! counts; this module reads the summaries that gungraun writes and compares them, per operation, with the baseline. The baseline is a
//! JSON object of targets, each an object of workloads and counts. A count on one kind of processor does not apply to another.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::error::Error;

/// Operations of each counted workload.
pub const OPS: usize = 6_400;

/// Counts per operation, by workload.
pub type Counts = BTreeMap<String, f64>;

/// Reads every file `summary.json` below `folder`, as counts per operation.
///
/// # Errors
/// A folder or file cannot be read; there is no summary; a summary has no count.
pub fn found(folder: &Path) -> Result<Counts, Error> {
    let mut counts = Counts::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |source| Error::Read { path: folder.clone(), source };
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name == "summary.json") {
                let (workload, count) = summary(&path)?;
                counts.insert(workload, count);
            }
        }
    }
    if counts.is_empty() {
        let reason = "no summary of a count is below it; `make bench-instr` counts first".to_owned();
        return Err(Error::Counts { path: folder.to_owned(), reason });
    }
    Ok(counts)
}

fn json(path: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|error| Error::Counts { path: path.to_owned(), reason: error.to_string() })
}

fn summary(path: &Path) -> Result<(String, f64), Error> {
    let summary = json(path)?;
    let count = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new").and_then(Value::as_f64);
    match (summary["id"].as_str(), count) {
        (Some(workload), Some(count)) => Ok((workload.to_owned(), count / OPS as f64)),
        _ => {
            let reason = "it has no `id`, or no count of instructions: was it written by another version?".to_owned();
            Err(Error::Counts { path: path.to_owned(), reason })
        }
    }
}

/// The target of this machine, by its name in baselines.
pub fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Reads the counts of `target` in a baseline; `None` if the baseline has none.
///
/// # Errors
/// The file cannot be read, or is not an object of objects of numbers.
pub fn baseline(path: &Path, target: &str) -> Result<Option<Counts>, Error> {
    Ok(targets(path)?.remove(target))
}

fn targets(path: &Path) -> Result<BTreeMap<String, Counts>, Error> {
    serde_json::from_value(json(path)?).map_err(|error| {
        let reason = format!("expected an object of targets, each an object of workloads and counts: {error}");
        Error::Counts { path: path.to_owned(), reason }
    })
}

/// Writes `counts` as the new baseline of `target`, one workload a line, and keeps those of other targets.
///
/// # Errors
/// The file exists and cannot be read, or it cannot be written.
pub fn write(path: &Path, target: &str, counts: &Counts) -> Result<(), Error> {
    let mut all = if path.exists() { targets(path)? } else { BTreeMap::new() };
    all.insert(target.to_owned(), counts.iter().map(|(name, count)| (name.clone(), count.round())).collect());
    let failed = |source| Error::Write { path: PathBuf::from(path), source };
    fs::write(path, format!("{:#}\n", serde_json::json!(all))).map_err(failed)
}

/// The count of one workload beside its committed count.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The workload.
    pub workload: String,
    /// The committed count per operation; `None` for a new workload.
    pub before: Option<f64>,
    /// The count per operation now; `None` for a workload that no longer exists.
    pub now: Option<f64>,
}

impl Change {
    /// The growth in percent; `None` for a workload that is new or no longer exists.
    pub fn percent(&self) -> Option<f64> {
        Some((self.now? / self.before? - 1.0) * 100.0)
    }

    /// Must a person look at the change? True if the count grew by more than `limit` percent, or if one side is missing.
    pub fn is_bad(&self, limit: f64) -> bool {
        self.percent().is_none_or(|percent| percent > limit)
    }
}

/// The changes of all workloads of both sides.
pub fn compare(before: &Counts, now: &Counts) -> Vec<Change> {
    let mut workloads: Vec<&String> = before.keys().chain(now.keys()).collect();
    workloads.sort_unstable();
    workloads.dedup();
    let change = |workload: &String| Change {
        workload: workload.clone(),
        before: before.get(workload).copied(),
        now: now.get(workload).copied(),
    };
    workloads.into_iter().map(change).collect()
}

/// The changes as an aligned table.
pub fn table(changes: &[Change], limit: f64) -> String {
    let width = changes.iter().map(|change| change.workload.len()).max().unwrap_or(0).max("workload".len());
    let mut text = format!("{:width$}  {:>9}  {:>9}  {:>8}\n", "workload", "committed", "now", "change");
    for change in changes {
        let count = |count: Option<f64>| count.map_or("-".to_owned(), |count| format!("{count:.0}"));
        // Adding zero turns a negative zero into zero.
        let tenths = |percent: f64| (percent * 10.0).round() / 10.0 + 0.0;
        let percent = change.percent().map_or("-".to_owned(), |percent| format!("{:+.1} %", tenths(percent)));
        let verdict = if change.is_bad(limit) { "  !" } else { "" };
        let (before, now) = (count(change.before), count(change.now));
        text += &format!("{:width$}  {before:>9}  {now:>9}  {percent:>8}{verdict}\n", change.workload);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, f64)]) -> Counts {
        counts.iter().map(|(workload, count)| ((*workload).to_owned(), *count)).collect()
    }

    #[test]
    fn growth_past_the_limit_is_bad_and_so_is_a_missing_side() {
        let before = counts(&[("fan", 100.0), ("gone", 1.0), ("random", 100.0)]);
        let now = counts(&[("fan", 102.5), ("new", 1.0), ("random", 103.5)]);
        let bad: Vec<(String, bool)> =
            compare(&before, &now).iter().map(|change| (change.workload.clone(), change.is_bad(3.0))).collect();
        let expected = [("fan", false), ("gone", true), ("new", true), ("random", true)];
        assert_eq!(bad, expected.map(|(workload, bad)| (workload.to_owned(), bad)));
        assert!(!compare(&now, &before)[0].is_bad(3.0), "less is never bad");
    }

    #[test]
    fn the_table_is_aligned() {
        let changes = compare(&counts(&[("fan", 1000.0)]), &counts(&[("fan", 1040.0), ("new", 7.0)]));
        assert_eq!(
            table(&changes, 3.0),
            "\
workload  committed        now    change
fan            1000       1040    +4.0 %  !
new               -          7         -  !
"
        );
    }

    #[test]
    fn counts_are_read_from_summaries_and_baselines_and_say_what_is_wrong() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("engine").join("chain");
        assert!(found(folder.path()).is_err_and(|error| error.to_string().contains("make bench-instr")));
        fs::create_dir_all(&below).expect("a folder");
        let summary = serde_json::json!({
            "id": "chain",
            "profiles": [{"data": {"total": {"metrics": {"Ir": {"values": {"new": 64_000}}}}}}]
        });
        fs::write(below.join("summary.json"), summary.to_string()).expect("a file");
        let now = found(folder.path()).expect("a count");
        assert_eq!(now, counts(&[("chain", 10.0)]));

        let path = folder.path().join("baseline.json");
        assert!(baseline(&path, "a").is_err_and(|error| error.to_string().contains("baseline.json")));
        write(&path, "a", &now).expect("written");
        write(&path, "b", &counts(&[("fan", 7.0)])).expect("written");
        assert_eq!(baseline(&path, "a").expect("a baseline"), Some(now));
        assert_eq!(baseline(&path, "c").expect("a baseline"), None, "another target");
        fs::write(&path, "[1]").expect("a file");
        assert!(baseline(&path, "a").is_err_and(|error| error.to_string().contains("expected an object")));
        assert!(write(&path, "a", &Counts::new()).is_err(), "what is there is not lost");
        fs::write(below.join("summary.json"), "{}").expect("a file");
        assert!(found(folder.path()).is_err_and(|error| error.to_string().contains("another version")));
    }
}

//! Large products of an engine beside a loop of OpenMP in one process.
//!
//! `native/openmp_work.c` is the loop. It is loaded as a shared library, because a user's process gets OpenMP in the same way: with the
//! extension module of another framework.

use std::hint::black_box;
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};
use serde_json::{Value, json};
use streamvm_benches::harness::case::Sizes;
use streamvm_benches::harness::stats::Summary;
use streamvm_benches::harness::table::{aligned, figures};
use streamvm_benches::workloads::beside::beside;

/// A metric over all runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its name.
    pub metric: String,
    /// Median, least and largest.
    pub summary: Summary,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library cannot be loaded.
    #[error("loading {}: {source}; `make bench-beside` builds it, with gcc", path.display())]
    Library {
        /// Its file.
        path: PathBuf,
        /// The error of the system's loader.
        source: libloading::Error,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] streamvm_benches::harness::error::Error),
}

/// Measures `runs` times; calls `progress` with the number of each run before it.
///
/// # Errors
/// [`Error`].
pub fn measure(library: &Path, runs: u32, quick: bool, progress: impl Fn(u32)) -> Result<Vec<Row>, Error> {
    let failed = |source| Error::Library { path: library.to_owned(), source };
    // SAFETY: the file is built from `native/openmp_work.c`; initialising it and the OpenMP library that it needs has no requirements. A
    // caller who names another file answers for what that does.
    let loaded = unsafe { Library::new(library) }.map_err(failed)?;
    // SAFETY: `native/openmp_work.c` defines the function with this type.
    let work: Symbol<'_, unsafe extern "C" fn(u64) -> u64> = unsafe { loaded.get(b"openmp_work") }.map_err(failed)?;
    let sizes = if quick { Sizes::QUICK } else { Sizes::FULL };
    let mut values: Vec<(String, Vec<f64>)> = Vec::new();
    for run in 1..=runs {
        progress(run);
        let other = |rounds: usize| {
            // SAFETY: the function takes any number, uses no memory of the caller, and may be called by any thread.
            black_box(unsafe { work(rounds as u64) });
        };
        for sample in beside(&sizes, &other)? {
            match values.iter_mut().find(|(metric, _)| *metric == sample.metric) {
                Some((_, values)) => values.push(sample.value),
                None => values.push((sample.metric, vec![sample.value])),
            }
        }
    }
    // Threads of OpenMP outlive the loop and run code of the library, so it is never unloaded.
    std::mem::forget(loaded);
    let row = |(metric, values): (String, Vec<f64>)| Some(Row { metric, summary: Summary::of(&values)? });
    Ok(values.into_iter().filter_map(row).collect())
}

/// The rows as an aligned table.
pub fn table(rows: &[Row]) -> String {
    let head = ["metric", "median", "min", "max"].map(str::to_owned);
    let line = |row: &Row| {
        let [median, min, max] = figures(row.summary);
        [row.metric.clone(), median, min, max]
    };
    aligned(&[head].into_iter().chain(rows.iter().map(line)).collect::<Vec<_>>(), &[1, 2, 3])
}

/// The rows as a JSON list of `{"metric", "value", "min", "max"}`; the value is the median.
pub fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let Summary { median, min, max } = row.summary;
        json!({"metric": row.metric, "value": median, "min": min, "max": max})
    };
    rows.iter().map(row).collect()
}

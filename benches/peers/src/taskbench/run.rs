//! Runs: all cases in turn, again and again, so that a noisy second hits all engines alike. Each run of each case has a process of its own.

use std::path::PathBuf;

use streamvm_benches::harness::child;
use streamvm_benches::harness::error::Error;
use streamvm_benches::harness::round_robin::{Row, gather};

use super::engine::{Case, Program};
use crate::run::NotRun;

/// The target of make that builds the drivers.
const BUILT_BY: &str = "make bench-taskbench";

/// What is run.
pub struct Selection {
    /// The cases, in order.
    pub cases: Vec<Case>,
    /// The widths of the graphs.
    pub widths: Vec<u32>,
    /// How often each case runs.
    pub runs: u32,
    /// A search that does not find the METG; the figures mean nothing.
    pub quick: bool,
    /// Where the drivers are built.
    pub drivers: PathBuf,
}

/// What came out.
pub struct Outcome {
    /// The widths of the graphs.
    pub widths: Vec<u32>,
    /// A row for each case and width.
    pub rows: Vec<Row<Case>>,
    /// Drivers, or single cases of them, that gave no figures.
    pub not_run: Vec<NotRun>,
}

/// Runs what is selected, and tells `progress` the number of each run as it starts, from 1, and each case. What has a
/// driver and does not run is left out, and said.
///
/// # Errors
/// The first failure of a case that needs no driver.
pub fn run(selection: Selection, mut progress: impl FnMut(u32, &str)) -> Result<Outcome, Error> {
    let Selection { mut cases, widths, runs, quick, drivers } = selection;
    let mut not_run: Vec<NotRun> = Vec::new();
    cases.retain(|case| {
        let Program::Driver(driver) = &case.engine.program else {
            return true;
        };
        let Some(why) = driver.missing(&drivers, BUILT_BY) else {
            return true;
        };
        if not_run.iter().all(|known| known.name != case.engine.name) {
            not_run.push(NotRun { name: case.engine.name.to_owned(), why });
        }
        false
    });
    let mut failed: Vec<Case> = Vec::new();
    let mut rows = gather(runs, &cases, |run, case| {
        if failed.contains(&case) {
            return Ok(Vec::new());
        }
        let name = case.name();
        progress(run, &name);
        let mut again = child::again(&name, quick, false)?;
        let widths = widths.iter().flat_map(|width| ["--width".to_owned(), width.to_string()]);
        child::ask(&name, again.args(widths).arg("--drivers").arg(&drivers)).or_else(|error| {
            if let Program::Streamvm(_) = case.engine.program {
                return Err(error);
            }
            failed.push(case);
            not_run.push(NotRun { name, why: error.to_string() });
            Ok(Vec::new())
        })
    })?;
    rows.retain(|row| !failed.contains(&row.case));
    Ok(Outcome { widths, rows, not_run })
}

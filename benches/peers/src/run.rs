//! Runs: all cases in turn, again and again, so that a noisy second hits streamvm and its peers alike. Each run of each
//! case has a process of its own: none inherits memory or threads of another.

use std::path::PathBuf;

use streamvm_benches::harness::case::Sample;
use streamvm_benches::harness::child;
use streamvm_benches::harness::error::Error;
use streamvm_benches::harness::round_robin::{Row, gather};

use crate::case::Case;
use crate::engine::Program;

/// What is run.
pub struct Selection {
    /// The cases, in order.
    pub cases: Vec<Case>,
    /// How often each runs.
    pub runs: u32,
    /// Small sizes; the figures mean nothing.
    pub quick: bool,
    /// Whether everything runs pinned to one core, too.
    pub one_core: bool,
    /// Where the drivers are built.
    pub drivers: PathBuf,
}

/// A peer, or one case of it, that gave no figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotRun {
    /// What did not run.
    pub name: String,
    /// Why not, in one line.
    pub why: String,
}

/// What came out.
pub struct Outcome {
    /// A row a metric.
    pub rows: Vec<Row<Case>>,
    /// What is missing.
    pub not_run: Vec<NotRun>,
}

/// Runs what is selected, and tells `progress` the number of each run as it starts, from 1, and each case. What has a
/// driver and does not run is left out, and said.
///
/// # Errors
/// The first failure of a case that needs no driver.
pub fn run(mut selection: Selection, mut progress: impl FnMut(u32, &str)) -> Result<Outcome, Error> {
    let mut not_run = without_drivers(&mut selection);
    let mut failed: Vec<Case> = Vec::new();
    let mut rows = gather(selection.runs, &selection.cases, |run, case| {
        if failed.contains(&case) {
            return Ok(Vec::new());
        }
        progress(run, &case.name());
        samples(case, &selection).or_else(|error| match &case.engine.program {
            Program::Driver(..) => {
                failed.push(case);
                not_run.push(NotRun { name: case.name(), why: error.to_string() });
                Ok(Vec::new())
            }
            Program::Here(_) => Err(error),
        })
    })?;
    rows.retain(|row| !failed.contains(&row.case));
    Ok(Outcome { rows, not_run })
}

/// Takes the cases out whose driver is not there, and gives each such driver once.
fn without_drivers(selection: &mut Selection) -> Vec<NotRun> {
    let mut not_run: Vec<NotRun> = Vec::new();
    let drivers = &selection.drivers;
    selection.cases.retain(|case| {
        let Program::Driver(driver, _) = &case.engine.program else {
            return true;
        };
        let Some(why) = driver.missing(drivers, "make bench-peers") else {
            return true;
        };
        if not_run.iter().all(|known| known.name != driver.folder) {
            not_run.push(NotRun { name: driver.folder.to_owned(), why });
        }
        false
    });
    not_run
}

fn samples(case: Case, selection: &Selection) -> Result<Vec<Sample>, Error> {
    let child = |one_core| {
        let name = case.name();
        let mut again = child::again(&name, selection.quick, one_core)?;
        child::ask(&name, again.arg("--drivers").arg(&selection.drivers))
    };
    let mut samples = child(false)?;
    if selection.one_core {
        samples.extend(child(true)?.into_iter().map(Sample::of_one_core));
    }
    Ok(samples)
}

//! Cases: one workload on one engine.

use std::path::Path;

use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;

use crate::engine::{ENGINES, Engine, Program};
use crate::workload::Workload;

/// One workload on one engine that can run it.
#[derive(Copy, Clone)]
pub struct Case {
    /// What is run.
    pub workload: Workload,
    /// By whom.
    pub engine: &'static Engine,
}

impl PartialEq for Case {
    /// Engines have names of their own.
    fn eq(&self, other: &Case) -> bool {
        self.workload == other.workload && self.engine.name == other.engine.name
    }
}

impl Case {
    /// The name of the case: `workload/engine`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.workload.name(), self.engine.name)
    }

    /// Whether a figure of this case is one that a figure of `other` is read against.
    fn is_counterpart_of(&self, other: &Case) -> bool {
        let figures = ["ns_per_op", "median"].map(|metric| other.engine.against.figures(other.workload, metric));
        self.workload == other.workload && figures.iter().flatten().any(|(engine, _)| *engine == self.engine.name)
    }

    /// Measures once. What has a driver turns this process into it, and does not return; `drivers` is where those are
    /// built.
    ///
    /// # Errors
    /// The engine failed, is not there, or did something else than what was asked of it.
    pub fn measure(&self, drivers: &Path, sizes: &Sizes) -> Result<Vec<Sample>, Error> {
        match &self.engine.program {
            Program::Driver(driver, _) => Err(driver.exec(drivers, self.workload, sizes)),
            Program::Here(runs) => {
                let run = runs.iter().find(|(workload, _)| *workload == self.workload);
                run.map_or(Ok(Vec::new()), |(_, run)| run(sizes))
            }
        }
    }
}

/// All cases: workload by workload, so that engines on the same one run close in time, streamvm first.
pub fn all() -> impl Iterator<Item = Case> {
    Workload::ALL.into_iter().flat_map(|workload| {
        let able = ENGINES.iter().filter(move |engine| engine.can_run(workload));
        able.map(move |engine| Case { workload, engine })
    })
}

/// The case of that name.
pub fn find(name: &str) -> Option<Case> {
    all().find(|case| case.name() == name)
}

/// The cases with `part` in their names, and those of streamvm that they are read against.
pub fn matching(part: &str) -> Vec<Case> {
    let named = |case: &Case| case.name().contains(part);
    all().filter(|case| named(case) || all().any(|other| named(&other) && case.is_counterpart_of(&other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_brings_along_what_figures_are_read_against() {
        let names = |part: &str| matching(part).iter().map(Case::name).collect::<Vec<_>>();
        assert_eq!(names("chain/tokio 1"), ["chain/streamvm", "chain/tokio 1 thread"]);
        assert_eq!(names("fan/mxnet naive"), ["fan/streamvm inline", "fan/mxnet naive"]);
        assert_eq!(names("latency/streamvm i"), ["latency/streamvm inline"]);
        assert!(names("nothing").is_empty());
    }

    #[test]
    fn names_tell_cases_apart() {
        for case in all() {
            assert_eq!(all().filter(|other| other.name() == case.name()).count(), 1, "{}", case.name());
            assert!(find(&case.name()).is_some_and(|found| found == case));
        }
    }
}

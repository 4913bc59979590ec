//! Runs: all cases in turn, again and again, so that a noisy second hits workloads and floors alike.

use crate::case::{Case, ONE_CORE, Sample, Sizes};
use crate::child;
use crate::error::Error;
use crate::stats::Summary;

/// What is run.
#[derive(Clone)]
pub struct Selection {
    /// The cases, in order.
    pub cases: Vec<&'static Case>,
    /// How often each runs.
    pub runs: u32,
    /// Small sizes; the figures mean nothing.
    pub quick: bool,
    /// Whether what differs on one core runs pinned to one, too.
    pub one_core: bool,
}

/// The outcome of one metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The name of the case.
    pub workload: &'static str,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Over all runs.
    pub summary: Summary,
}

/// Runs what is selected, and tells `progress` the number of each run as it starts, from 1, and each case.
///
/// # Errors
/// The first failure of a case.
pub fn run(selection: &Selection, mut progress: impl FnMut(u32, &str)) -> Result<Vec<Row>, Error> {
    let mut gathered: Vec<(&'static str, Sample, Vec<f64>)> = Vec::new();
    for run in 1..=selection.runs {
        for case in &selection.cases {
            progress(run, case.name);
            for sample in samples(case, selection)? {
                let same =
                    |(name, known, _): &&mut (&str, Sample, _)| *name == case.name && known.metric == sample.metric;
                match gathered.iter_mut().find(same) {
                    Some((_, _, values)) => values.push(sample.value),
                    None => {
                        let values = vec![sample.value];
                        gathered.push((case.name, sample, values));
                    }
                }
            }
        }
    }
    let row = |(workload, Sample { metric, unit, .. }, values): (&'static str, Sample, Vec<f64>)| {
        Summary::of(&values).map(|summary| Row { workload, metric, unit, summary })
    };
    Ok(gathered.into_iter().filter_map(row).collect())
}

fn samples(case: &Case, selection: &Selection) -> Result<Vec<Sample>, Error> {
    let sizes = sizes(selection.quick);
    let mut samples =
        if case.own_process { child::measure(case, selection.quick, false)? } else { (case.run)(&sizes)? };
    if selection.one_core && case.differs_on_one_core() {
        let pinned = child::measure(case, selection.quick, true)?;
        samples.extend(pinned.into_iter().map(|sample| Sample { metric: sample.metric + ONE_CORE, ..sample }));
    }
    Ok(samples)
}

/// The sizes of a full or a quick run.
pub fn sizes(quick: bool) -> Sizes {
    if quick { Sizes::QUICK } else { Sizes::FULL }
}

//! Runs: all cases in turn, again and again, so that a noisy second hits workloads and floors alike.

use crate::case::{Case, Sample, Sizes};
use crate::child;
use crate::error::Error;
use crate::stats::Summary;

/// Runs of a full measurement: the fewest whose median shrugs off two bad ones.
const RUNS: u32 = 5;

/// Runs of a quick one: two, so that a second run is tried at all.
const QUICK_RUNS: u32 = 2;

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

/// The outcome of one metric of a case; `C` is what tells cases apart.
#[derive(Clone, PartialEq, Debug)]
pub struct Row<C = &'static str> {
    /// The case; by default its name.
    pub case: C,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Over all runs.
    pub summary: Summary,
}

/// The samples of many runs: metrics in the order in which they first came.
pub struct Gathered<C> {
    metrics: Vec<(C, Sample, Vec<f64>)>,
}

impl<C: PartialEq> Gathered<C> {
    /// Nothing yet.
    pub fn new() -> Gathered<C> {
        Gathered { metrics: Vec::new() }
    }

    /// Adds one sample of a case.
    pub fn add(&mut self, case: C, sample: Sample) {
        let same = |(of, known, _): &&mut (C, Sample, _)| *of == case && known.metric == sample.metric;
        match self.metrics.iter_mut().find(same) {
            Some((_, _, values)) => values.push(sample.value),
            None => {
                let values = vec![sample.value];
                self.metrics.push((case, sample, values));
            }
        }
    }

    /// What came out.
    pub fn rows(self) -> Vec<Row<C>> {
        let row = |(case, Sample { metric, unit, .. }, values): (C, Sample, Vec<f64>)| {
            Summary::of(&values).map(|summary| Row { case, metric, unit, summary })
        };
        self.metrics.into_iter().filter_map(row).collect()
    }
}

impl<C: PartialEq> Default for Gathered<C> {
    fn default() -> Gathered<C> {
        Gathered::new()
    }
}

/// Runs what is selected, and tells `progress` the number of each run as it starts, from 1, and each case.
///
/// # Errors
/// The first failure of a case.
pub fn run(selection: &Selection, mut progress: impl FnMut(u32, &str)) -> Result<Vec<Row>, Error> {
    let mut gathered = Gathered::new();
    for run in 1..=selection.runs {
        for case in &selection.cases {
            progress(run, case.name);
            samples(case, selection)?.into_iter().for_each(|sample| gathered.add(case.name, sample));
        }
    }
    Ok(gathered.rows())
}

fn samples(case: &Case, selection: &Selection) -> Result<Vec<Sample>, Error> {
    let child = |one_core| child::ask(case.name, &mut child::again(case.name, selection.quick, one_core)?);
    let mut samples = if case.own_process { child(false)? } else { (case.run)(&sizes(selection.quick))? };
    if selection.one_core && case.differs_on_one_core() {
        samples.extend(child(true)?.into_iter().map(Sample::of_one_core));
    }
    Ok(samples)
}

/// How often cases run unless said otherwise.
pub fn default_runs(quick: bool) -> u32 {
    if quick { QUICK_RUNS } else { RUNS }
}

/// The sizes of a full or a quick run.
pub fn sizes(quick: bool) -> Sizes {
    if quick { Sizes::QUICK } else { Sizes::FULL }
}

//! Runs all cases in turn, several times, so that a noisy second affects workloads and floors alike.

use crate::harness::case::{Case, Sample, Sizes};
use crate::harness::child;
use crate::harness::error::Error;
use crate::harness::stats::Summary;

/// The cases to run, and how.
#[derive(Clone)]
pub struct Selection {
    /// The cases, in order.
    pub cases: Vec<&'static Case>,
    /// Number of runs of each case.
    pub runs: u32,
    /// Use small sizes? The figures then mean nothing.
    pub quick: bool,
    /// Also run the cases that differ on one core pinned to one core?
    pub one_core: bool,
}

/// The outcome of one metric of a case; `C` is the type of the case.
#[derive(Clone, PartialEq, Debug)]
pub struct Row<C = &'static Case> {
    /// The case.
    pub case: C,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The statistics over all runs.
    pub summary: Summary,
}

/// Measures all cases in turn, `runs` times; `measure` gets the number of the run, from 1, and the case.
///
/// # Errors
/// The first failure of a measurement.
pub fn gather<C: Copy>(
    runs: u32,
    cases: &[C],
    mut measure: impl FnMut(u32, C) -> Result<Vec<Sample>, Error>,
) -> Result<Vec<Row<C>>, Error> {
    let mut gathered: Vec<(usize, Sample, Vec<f64>)> = Vec::new();
    for run in 1..=runs {
        for (index, case) in cases.iter().enumerate() {
            for sample in measure(run, *case)? {
                let same = |(of, known, _): &&mut (usize, Sample, _)| *of == index && known.metric == sample.metric;
                match gathered.iter_mut().find(same) {
                    Some((_, _, values)) => values.push(sample.value),
                    None => {
                        let values = vec![sample.value];
                        gathered.push((index, sample, values));
                    }
                }
            }
        }
    }
    let row = |(index, Sample { metric, unit, .. }, values): (usize, Sample, Vec<f64>)| {
        Summary::of(&values).map(|summary| Row { case: cases[index], metric, unit, summary })
    };
    Ok(gathered.into_iter().filter_map(row).collect())
}

/// Runs the selected cases; calls `progress` with the number of the run, from 1, and the case, before each measurement.
///
/// # Errors
/// The first failure of a case.
pub fn run(selection: &Selection, mut progress: impl FnMut(u32, &str)) -> Result<Vec<Row>, Error> {
    gather(selection.runs, &selection.cases, |run, case| {
        progress(run, case.name);
        samples(case, selection)
    })
}

fn samples(case: &Case, selection: &Selection) -> Result<Vec<Sample>, Error> {
    let child = |one_core| child::ask(case.name, &mut child::again(case.name, selection.quick, one_core)?);
    let mut samples = if case.own_process { child(false)? } else { (case.run)(&sizes(selection.quick))? };
    if selection.one_core && case.differs_on_one_core() {
        samples.extend(child(true)?.into_iter().map(Sample::of_one_core));
    }
    Ok(samples)
}

/// The sizes of a full or a quick run.
pub fn sizes(quick: bool) -> Sizes {
    if quick { Sizes::QUICK } else { Sizes::FULL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_measured_in_each_run_before_the_next_run() {
        let mut order = Vec::new();
        let rows = gather(3, &['a', 'b'], |run, case| {
            order.push((run, case));
            Ok(vec![Sample::ns("m", f64::from(run)), Sample::ns("n", 7.0)])
        })
        .unwrap();
        assert_eq!(order, [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b'), (3, 'a'), (3, 'b')]);
        let found: Vec<_> = rows.iter().map(|row| (row.case, row.metric.as_str(), row.summary.median)).collect();
        assert_eq!(found, [('a', "m", 2.0), ('a', "n", 7.0), ('b', "m", 2.0), ('b', "n", 7.0)]);
    }
}

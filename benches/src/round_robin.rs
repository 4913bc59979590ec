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

/// The outcome of one metric of one of several items.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The place of the item among all.
    pub item: usize,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Over all runs.
    pub summary: Summary,
}

/// Measures all items in turn, `runs` times; `measure` gets the number of the run, from 1, and the item.
///
/// # Errors
/// The first failure of a measurement.
pub fn gather<T>(
    runs: u32,
    items: &[T],
    mut measure: impl FnMut(u32, &T) -> Result<Vec<Sample>, Error>,
) -> Result<Vec<Measured>, Error> {
    let mut gathered: Vec<(usize, Sample, Vec<f64>)> = Vec::new();
    for run in 1..=runs {
        for (item, what) in items.iter().enumerate() {
            for sample in measure(run, what)? {
                let same =
                    |(other, known, _): &&mut (usize, Sample, _)| *other == item && known.metric == sample.metric;
                match gathered.iter_mut().find(same) {
                    Some((_, _, values)) => values.push(sample.value),
                    None => {
                        let values = vec![sample.value];
                        gathered.push((item, sample, values));
                    }
                }
            }
        }
    }
    let measured = |(item, Sample { metric, unit, .. }, values): (usize, Sample, Vec<f64>)| {
        Summary::of(&values).map(|summary| Measured { item, metric, unit, summary })
    };
    Ok(gathered.into_iter().filter_map(measured).collect())
}

/// Runs what is selected, and tells `progress` the number of each run as it starts, from 1, and each case.
///
/// # Errors
/// The first failure of a case.
pub fn run(selection: &Selection, mut progress: impl FnMut(u32, &str)) -> Result<Vec<Row>, Error> {
    let measured = gather(selection.runs, &selection.cases, |run, case| {
        progress(run, case.name);
        samples(case, selection)
    })?;
    let row =
        |Measured { item, metric, unit, summary }| Row { workload: selection.cases[item].name, metric, unit, summary };
    Ok(measured.into_iter().map(row).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_measured_in_each_run_before_the_next_run() {
        let mut order = Vec::new();
        let measured = gather(3, &['a', 'b'], |run, item| {
            order.push((run, *item));
            Ok(vec![Sample::ns("m", f64::from(run)), Sample::ns("n", 7.0)])
        })
        .unwrap();
        assert_eq!(order, [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b'), (3, 'a'), (3, 'b')]);
        let found: Vec<_> = measured.iter().map(|m| (m.item, m.metric.as_str(), m.summary.median)).collect();
        assert_eq!(found, [(0, "m", 2.0), (0, "n", 7.0), (1, "m", 2.0), (1, "n", 7.0)]);
    }
}

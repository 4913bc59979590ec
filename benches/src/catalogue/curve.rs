//! Curves: one workload at growing sizes, which shows whether the cost of an operation grows with them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::catalogue::verdict::{Verdict, summary};
use crate::growth;
use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::harness::round_robin::{Row, gather};
use crate::harness::table::{aligned, figures};

/// One workload at growing sizes.
pub struct Curve {
    /// Its name in reports, and the name of its plot.
    pub name: &'static str,
    /// The quantity that grows.
    pub axis: &'static str,
    /// The sizes; each is the one before times the same factor.
    pub points: &'static [usize],
    /// Measures one size once, with at least `ops` operations; each sample is a point of one series. Warms up by itself.
    pub run: fn(point: usize, ops: usize) -> Result<Vec<Sample>, Error>,
}

/// Sizes from ten to a million.
const DECADES: &[usize] = &[10, 100, 1_000, 10_000, 100_000, 1_000_000];

/// Sizes from one to a million.
const DECADES_FROM_1: &[usize] = &[1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];

/// Sizes from one to a hundred thousand.
const TO_100_000: &[usize] = &[1, 10, 100, 1_000, 10_000, 100_000];

/// Sizes from a hundred to a hundred thousand.
const LONG_TO_100_000: &[usize] = &[100, 1_000, 10_000, 100_000];

/// Sizes from a hundred to a million.
const LONG: &[usize] = &[100, 1_000, 10_000, 100_000, 1_000_000];

/// Sizes from one to 64.
const DOUBLED: &[usize] = &[1, 2, 4, 8, 16, 32, 64];

/// All curves.
pub const CURVES: [Curve; 9] = [
    Curve { name: "variables", axis: "variables", points: DECADES, run: growth::variables },
    Curve { name: "tensors", axis: "live tensors", points: DECADES, run: growth::tensors::tensors },
    Curve { name: "streams", axis: "lanes", points: DOUBLED, run: growth::streams },
    Curve { name: "depth", axis: "pending operations", points: DECADES_FROM_1, run: growth::depth::depth },
    Curve { name: "operands", axis: "operands of an operation", points: TO_100_000, run: growth::operands },
    Curve { name: "lists", axis: "lines", points: LONG_TO_100_000, run: growth::lists::lists },
    Curve { name: "futures", axis: "futures", points: TO_100_000, run: growth::futures::futures },
    Curve { name: "compile", axis: "steps", points: LONG, run: growth::programs::compiling },
    Curve { name: "programs", axis: "steps or feeds", points: LONG_TO_100_000, run: growth::programs::programs },
];

/// The curves with `part` in their names.
pub fn matching(part: &str) -> Vec<&'static Curve> {
    CURVES.iter().filter(|curve| curve.name.contains(part)).collect()
}

/// The fewest operations of a measurement: enough to take tens of milliseconds where an operation takes 100 ns.
const OPS: usize = 200_000;

/// The same for a quick run, which only shows that the measurement works.
const QUICK_OPS: usize = 1_000;

/// Sizes of a quick run.
const QUICK_POINTS: usize = 3;

/// If a size takes longer, the larger sizes of its curve are left out: each curve does about the same work at all sizes, in a few seconds, unless a
/// cost grows much faster than the size. The sizes that were measured show that.
const LONGEST: Duration = Duration::from_secs(20);

/// One size of a curve, which is measured as one case. Its metrics are the series of the curve.
#[derive(Copy, Clone)]
pub struct Point {
    /// The curve.
    pub curve: &'static Curve,
    /// The size.
    pub size: usize,
}

/// Runs all sizes of all curves in turn, `runs` times, so that a noisy second affects few sizes, and each in one run only. Leaves out the sizes
/// beyond one that takes longer than 20 s. Calls `progress` before each measurement, with the number of the run, from 1, the curve, the size, and
/// whether the size is left out.
///
/// # Errors
/// The first failure of a curve.
pub fn run(
    curves: &[&'static Curve],
    runs: u32,
    quick: bool,
    mut progress: impl FnMut(u32, &str, usize, bool),
) -> Result<Vec<Row<Point>>, Error> {
    let (ops, most) = if quick { (QUICK_OPS, QUICK_POINTS) } else { (OPS, usize::MAX) };
    let points: Vec<_> = curves
        .iter()
        .flat_map(|&curve| curve.points.iter().take(most).map(move |&size| Point { curve, size }))
        .collect();
    // The curve that has such a size in this run. Its larger sizes come next.
    let mut too_long = None;
    let mut rows = gather(runs, &points, |run, Point { curve, size }| {
        let left_out = too_long == Some((run, curve.name));
        progress(run, curve.name, size, left_out);
        if left_out {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let samples = (curve.run)(size, ops)?;
        if start.elapsed() > LONGEST {
            too_long = Some((run, curve.name));
        }
        Ok(samples)
    })?;
    // Sorted by series, then by size.
    let place = |curve: &Curve| CURVES.iter().position(|other| other.name == curve.name);
    rows.sort_by_cached_key(|row| (place(row.case.curve), row.metric.clone(), row.case.size));
    Ok(rows)
}

/// The median, divided by the median of the smallest size of the same series.
fn ratio(row: &Row<Point>, rows: &[Row<Point>]) -> f64 {
    let same = |other: &&Row<Point>| (other.case.curve.name, &other.metric) == (row.case.curve.name, &row.metric);
    let smallest = rows.iter().filter(same).min_by_key(|other| other.case.size).unwrap_or(row);
    row.summary.median / smallest.summary.median
}

/// The rows as an aligned table, and a line that names the series that are not near-linear. The ratio is to the smallest size of the series,
/// `tenfold` its growth by [`Verdict`].
pub fn table(rows: &[Row<Point>]) -> String {
    let head = ["curve", "series", "point", "median", "min", "max", "unit", "ratio", "tenfold", "near-linear"];
    let line = |row: &Row<Point>| {
        let [median, min, max] = figures(row.summary);
        let (size, ratio) = (row.case.size.to_string(), format!("{:.2}", ratio(row, rows)));
        let (tenfold, verdict) = match Verdict::of(row, rows) {
            Some(verdict) => (format!("{:.2}", verdict.tenfold), if verdict.is_near_linear() { "yes" } else { "NO" }),
            None => (String::new(), ""),
        };
        let (curve, unit, verdict) = (row.case.curve.name.to_owned(), row.unit.clone(), verdict.to_owned());
        [curve, row.metric.clone(), size, median, min, max, unit, ratio, tenfold, verdict]
    };
    let lines = [head.map(str::to_owned)].into_iter().chain(rows.iter().map(line));
    aligned(&lines.collect::<Vec<_>>(), &[2, 3, 4, 5, 7, 8]) + &summary(rows)
}

/// The rows as a JSON list of `{"curve", "series", "point", "value", "unit", "min", "max", "ratio", "tenfold", "near_linear"}`; the value is the
/// median, and the last three are those of the table (`null` for a series of one size).
pub fn json(rows: &[Row<Point>]) -> Value {
    let row = |row: &Row<Point>| {
        let verdict = Verdict::of(row, rows);
        json!({
            "curve": row.case.curve.name,
            "series": row.metric,
            "point": row.case.size,
            "value": row.summary.median,
            "unit": row.unit,
            "min": row.summary.min,
            "max": row.summary.max,
            "ratio": ratio(row, rows),
            "tenfold": verdict.map(|verdict| verdict.tenfold),
            "near_linear": verdict.map(Verdict::is_near_linear),
        })
    };
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::stats::Summary;

    fn row(series: &str, size: usize, median: f64) -> Row<Point> {
        let case = Point { curve: matching("streams")[0], size };
        let summary = Summary { median, min: median / 2.0, max: median * 2.0 };
        Row { case, metric: series.to_owned(), unit: "ns".to_owned(), summary }
    }

    #[test]
    fn ratios_are_to_the_smallest_size_of_the_same_series() {
        let rows = [row("a", 8, 30.0), row("a", 1, 20.0), row("b", 1, 5.0), row("b", 2, 20.0)];
        assert_eq!(rows.each_ref().map(|row| ratio(row, &rows)), [1.5, 1.0, 1.0, 4.0]);
        assert_eq!(
            table(&rows[..2]),
            "\
curve    series  point  median   min   max  unit  ratio  tenfold  near-linear
streams  a           8    30.0  15.0  60.0  ns     1.50     1.57  yes
streams  a           1    20.0  10.0  40.0  ns     1.00     1.57  yes
near-linear: all series (an item of a tenfold size takes at most 3 times as long)
"
        );
        assert_eq!(
            json(&rows[..1]),
            json!([{
                "curve": "streams", "series": "a", "point": 8, "value": 30.0, "unit": "ns", "min": 15.0, "max": 60.0,
                "ratio": 1.0, "tenfold": null, "near_linear": null
            }])
        );
    }

    #[test]
    fn sizes_of_every_curve_grow_by_one_factor() {
        for curve in &CURVES {
            let factor = curve.points[1] / curve.points[0];
            assert!(factor > 1, "{}", curve.name);
            assert!(curve.points.windows(2).all(|pair| pair[1] == factor * pair[0]), "{}", curve.name);
            assert!(curve.points.len() >= QUICK_POINTS, "{}", curve.name);
        }
    }
}

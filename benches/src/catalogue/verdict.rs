//! Verdicts: whether the time of an item stays about the same as its curve grows.

use crate::catalogue::curve::Point;
use crate::harness::round_robin::Row;

/// The most that the time of an item may grow with a tenfold size, for the series to count as near-linear. An item of a quadratic series
/// takes ten times as long, and of one in proportion to the square root 3.2 times. Sorted structures and caches cost less than twice as much.
pub const MOST: f64 = 3.0;

/// The growth of one series.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Verdict {
    /// By how much the time of an item grows with a tenfold size, between the last size and the largest one that is at most a tenth of it, or
    /// else the smallest.
    pub tenfold: f64,
}

impl Verdict {
    /// The verdict on the series of `row`; `None` if only one size was measured.
    pub fn of(row: &Row<Point>, rows: &[Row<Point>]) -> Option<Verdict> {
        let same = |other: &&Row<Point>| (other.case.curve.name, &other.metric) == (row.case.curve.name, &row.metric);
        let series = || rows.iter().filter(same);
        let last = series().max_by_key(|row| row.case.size)?;
        let before = series().filter(|row| row.case.size * 10 <= last.case.size).max_by_key(|row| row.case.size);
        let before = before.or_else(|| series().min_by_key(|row| row.case.size))?;
        if before.case.size == last.case.size {
            return None;
        }
        let growth = last.summary.median / before.summary.median;
        let tenfolds = (last.case.size as f64 / before.case.size as f64).log10();
        Some(Verdict { tenfold: growth.powf(1.0 / tenfolds) })
    }

    /// Whether the series is near-linear.
    pub fn is_near_linear(self) -> bool {
        self.tenfold <= MOST
    }
}

/// One line that names the series that are not near-linear.
pub fn summary(rows: &[Row<Point>]) -> String {
    let mut names: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| Verdict::of(row, rows).is_some_and(|verdict| !verdict.is_near_linear())) {
        let name = format!("{}: {}", row.case.curve.name, row.metric);
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        format!("near-linear: all series (an item of a tenfold size takes at most {MOST} times as long)\n")
    } else {
        format!("not near-linear (an item of a tenfold size takes over {MOST} times as long): {}\n", names.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::curve::matching;
    use crate::harness::stats::Summary;

    fn series(name: &str, medians: &[(usize, f64)]) -> Vec<Row<Point>> {
        let row = |&(size, median): &(usize, f64)| Row {
            case: Point { curve: matching("streams")[0], size },
            metric: name.to_owned(),
            unit: "ns".to_owned(),
            summary: Summary { median, min: median, max: median },
        };
        medians.iter().map(row).collect()
    }

    fn tenfold(rows: &[Row<Point>]) -> f64 {
        (Verdict::of(&rows[0], rows).unwrap().tenfold * 100.0).round() / 100.0
    }

    #[test]
    fn the_growth_is_that_of_the_last_tenfold_size() {
        assert_eq!(tenfold(&series("flat", &[(1, 90.0), (10, 5.0), (100, 5.0)])), 1.0);
        assert_eq!(tenfold(&series("quadratic", &[(10, 5.0), (100, 5.0), (1000, 50.0)])), 10.0);
        assert_eq!(
            tenfold(&series("doubled", &[(1, 1.0), (4, 1.0), (16, 1.0), (64, 16.0)])),
            10.0,
            "of 16 times the size"
        );
        assert_eq!(tenfold(&series("short", &[(1, 1.0), (4, 2.0)])), 3.16, "the smallest");
        let alone = series("alone", &[(1, 1.0)]);
        assert_eq!(Verdict::of(&alone[0], &alone), None);
    }

    #[test]
    fn the_summary_names_each_series_that_is_not_near_linear_once() {
        let mut rows = series("flat", &[(1, 5.0), (10, 14.0)]);
        assert!(summary(&rows).starts_with("near-linear: all"), "{}", summary(&rows));
        rows.extend(series("steep", &[(1, 5.0), (10, 16.0)]));
        assert!(summary(&rows).ends_with(": streams: steep\n"), "{}", summary(&rows));
    }
}

//! Order statistics of samples.

/// Median, smallest and largest of several runs.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Summary {
    /// The middle value; for an even number of values the mean of the two middle ones.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// Summarises `values`; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Summary { median, min, max })
    }
}

/// Median and 99th percentile of durations in ns; sorts them in place. Both are zero if there are none.
pub fn median_and_p99(durations: &mut [u64]) -> (f64, f64) {
    durations.sort_unstable();
    let at = |index: usize| durations.get(index).copied().unwrap_or(0) as f64;
    (at(durations.len() / 2), at(durations.len() * 99 / 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_median_and_extremes() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Summary::of(&[4.0, 1.0]), Some(Summary { median: 2.5, min: 1.0, max: 4.0 }));
    }

    #[test]
    fn percentiles_are_of_the_sorted_durations() {
        let mut durations: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(median_and_p99(&mut durations), (51.0, 100.0));
        assert_eq!(median_and_p99(&mut []), (0.0, 0.0));
    }
}

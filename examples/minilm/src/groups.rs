//! Texts of mixed lengths, in groups of about one length.
//!
//! The texts of a run are padded to its longest one, and a run by itself costs as much as some tokens: products of few rows use the processor worse. So texts that
//! arrive together are divided where that saves more tokens of padding than a further run costs.

use std::ops::Range;

/// As many tokens a run takes as long as: on two cores, one text of 8 tokens takes as long as 32 tokens of a large batch.
const TOKENS_OF_A_RUN: usize = 24;

/// Divides lengths, which are in ascending order, into runs of neighbours, so that the tokens that are computed, with those that a run costs, are the fewest.
/// Takes time in proportion to the square of their number.
fn divided(lengths: &[usize]) -> Vec<Range<usize>> {
    // For each number of first texts, the fewest tokens and where the last run begins.
    let mut best: Vec<(usize, usize)> = vec![(0, 0)];
    for end in 1..=lengths.len() {
        let longest = lengths[end - 1];
        let with = |begin: usize| (best[begin].0 + TOKENS_OF_A_RUN + (end - begin) * longest, begin);
        best.push((0..end).map(with).min().unwrap_or_default());
    }
    let mut runs = Vec::new();
    let mut end = lengths.len();
    while end > 0 {
        let begin = best[end].1;
        runs.push(begin..end);
        end = begin;
    }
    runs
}

/// The places of texts with these lengths, in groups that are computed together.
pub(crate) fn groups(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut places: Vec<usize> = (0..lengths.len()).collect();
    places.sort_by_key(|&place| lengths[place]);
    let sorted: Vec<usize> = places.iter().map(|&place| lengths[place]).collect();
    divided(&sorted).into_iter().map(|run| places[run].to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_about_one_length_are_together_and_others_apart() {
        let mut found = groups(&[9, 200, 8, 12, 190, 10]);
        found.sort_by_key(|group| group.len());
        found.iter_mut().for_each(|group| group.sort_unstable());
        assert_eq!(found, [vec![1, 4], vec![0, 2, 3, 5]]);
        assert!(groups(&[]).is_empty());
        // A further run costs more than the padding.
        assert_eq!(groups(&[1, 20]).len(), 1);
        assert_eq!(groups(&[1, 30]).len(), 2);
    }

    /// Beside all ways to divide up to eight lengths.
    #[test]
    fn no_other_division_has_fewer_tokens() {
        let cost = |lengths: &[usize], runs: &[Range<usize>]| -> usize {
            runs.iter().map(|run| TOKENS_OF_A_RUN + run.len() * lengths[run.end - 1]).sum()
        };
        for seed in 1..40usize {
            let mut lengths: Vec<usize> = (0..1 + seed % 8).map(|at| 1 + (seed * 31 + at * 57) % 90).collect();
            lengths.sort_unstable();
            let ways = (0..1usize << (lengths.len() - 1)).map(|cuts| {
                let ends = (1..lengths.len()).filter(|at| cuts >> (at - 1) & 1 == 1).chain([lengths.len()]);
                let mut begin = 0;
                ends.map(|end| std::mem::replace(&mut begin, end)..end).collect::<Vec<_>>()
            });
            let fewest = ways.map(|runs| cost(&lengths, &runs)).min();
            assert_eq!(Some(cost(&lengths, &divided(&lengths))), fewest, "{lengths:?}");
        }
    }
}

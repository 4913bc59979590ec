//! Moments of one stream: what was known to be over when a number had passed, kept the coarser the older it is.
//!
//! The newest [`EXACT`] numbers are kept one by one, the same number of steps of two behind them, then of four, and so on
//! over [`LEVELS`] levels. A number that is not kept counts as the next one that is: more order than there is, so no
//! false finding; and little more, as steps stay below a hundredth of how long ago they were. (The scheme is that of
//! exponential histograms: Datar, Gionis, Indyk, Motwani, SODA 2002.)

use std::collections::VecDeque;

/// Entries of a level.
const EXACT: usize = 256;

/// Levels: 16,128 numbers, by at most 1,536 entries. An instruction that waits for an older number is taken to come after the oldest entry, so
/// a race with what its source ran in between is not seen.
const LEVELS: usize = 6;

/// See the module's comment. `T` is what is kept for a number.
pub(crate) struct Moments<T> {
    /// Newest level first; in each, numbers grow. What is in one level is newer than what is in the next.
    levels: Vec<VecDeque<(u64, T)>>,
}

impl<T> Moments<T> {
    /// None.
    pub(crate) fn new() -> Moments<T> {
        Moments { levels: Vec::new() }
    }

    /// Enters a number, higher than those before.
    pub(crate) fn enter(&mut self, seq: u64, moment: T) {
        let mut entry = (seq, moment);
        for level in 0..LEVELS {
            if self.levels.len() == level {
                self.levels.push(VecDeque::new());
            }
            let entries = &mut self.levels[level];
            entries.push_back(entry);
            if entries.len() <= EXACT {
                return;
            }
            // Of the two oldest the later one goes on, and stands for both.
            entries.pop_front();
            match entries.pop_front() {
                Some(later) => entry = later,
                None => return,
            }
        }
    }

    /// What is kept for `seq` or the next number that is kept; for a number that was not entered yet, the newest.
    pub(crate) fn find(&self, seq: u64) -> Option<&T> {
        let next = |entries: &VecDeque<(u64, T)>| entries.partition_point(|(entered, _)| *entered < seq);
        let at_or_after = self.levels.iter().rev().find_map(|entries| entries.get(next(entries)));
        at_or_after.or_else(|| self.levels.first()?.back()).map(|(_, moment)| moment)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_exact_and_older_ones_count_as_little_later_never_earlier() {
        const LAST: u64 = 16_000;
        let mut moments = Moments::new();
        assert_eq!(moments.find(1), None);
        for seq in 1..=LAST {
            moments.enter(seq, seq);
            assert_eq!(moments.find(seq), Some(&seq));
        }
        for seq in 1..=LAST {
            let found = *moments.find(seq).expect("something is kept");
            let (late, age) = (found.checked_sub(seq).expect("never less order than there is"), LAST - seq);
            assert!(late * 100 <= age, "{seq} counts as {found}");
            assert!(late == 0 || age >= EXACT as u64 - 1, "{seq} counts as {found}");
        }
        assert_eq!(moments.find(LAST + 1), Some(&LAST), "the newest stands for what is still to come");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut moments = Moments::new();
        for seq in 1..=2_000_000 {
            moments.enter(seq, seq);
        }
        let kept: usize = moments.levels.iter().map(VecDeque::len).sum();
        assert!(kept <= EXACT * LEVELS, "{kept}");
        assert!(*moments.find(1).expect("the oldest") < 2_000_000 - 12_000);
    }
}

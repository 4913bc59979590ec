//! The history of one ordered stream's vector clock: for each number, a copy of the clock when the number passed. The older an entry, the
//! coarser its resolution.
//!
//! The newest [`EXACT`] numbers have one entry each. After them the same number of entries stand for two numbers each, then for four each,
//! and so on over [`LEVELS`] levels. A look-up of a number without an entry returns the next higher entry. That implies more order than
//! exists, so the detector never reports a false race. The error stays small: an entry is off by less than a hundredth of its age. (The
//! scheme is that of exponential histograms: Datar, Gionis, Indyk, Motwani, SODA 2002.)

use std::collections::VecDeque;

/// Entries per level.
const EXACT: usize = 256;

/// Number of levels. Together they cover 16,128 numbers with at most 1,536 entries. An instruction that waits for an older number counts as
/// ordered after the oldest entry, so the detector misses a race between that instruction and what the source stream ran in between.
const LEVELS: usize = 6;

/// See the module's documentation. `T` is what is kept per number.
pub(crate) struct ClockHistory<T> {
    /// The levels, newest first. Numbers grow within a level, and every entry of a level is newer than all entries of the next.
    levels: Vec<VecDeque<(u64, T)>>,
}

impl<T> ClockHistory<T> {
    /// An empty history.
    pub(crate) fn new() -> ClockHistory<T> {
        ClockHistory { levels: Vec::new() }
    }

    /// Adds the entry of a number, which must be higher than all before.
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
            // Of the two oldest entries the later one moves to the next level and stands for both.
            entries.pop_front();
            match entries.pop_front() {
                Some(later) => entry = later,
                None => return,
            }
        }
    }

    /// The entry of `seq`, or the next higher entry. For a number that has no entry yet: the newest entry.
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
        let mut moments = ClockHistory::new();
        assert_eq!(moments.find(1), None);
        for seq in 1..=LAST {
            moments.enter(seq, seq);
            assert_eq!(moments.find(seq), Some(&seq));
        }
        for seq in 1..=LAST {
            let found = *moments.find(seq).expect("the history has an entry");
            let (late, age) = (found.checked_sub(seq).expect("an entry is never earlier than its number"), LAST - seq);
            assert!(late * 100 <= age, "{seq} counts as {found}");
            assert!(late == 0 || age >= EXACT as u64 - 1, "{seq} counts as {found}");
        }
        assert_eq!(moments.find(LAST + 1), Some(&LAST), "a number without an entry yet gets the newest");
    }

    #[test]
    fn the_history_is_bounded() {
        let mut moments = ClockHistory::new();
        for seq in 1..=2_000_000 {
            moments.enter(seq, seq);
        }
        let kept: usize = moments.levels.iter().map(VecDeque::len).sum();
        assert!(kept <= EXACT * LEVELS, "{kept}");
        assert!(*moments.find(1).expect("the oldest") < 2_000_000 - 12_000);
    }
}

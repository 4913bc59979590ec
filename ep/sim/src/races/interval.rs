//! A map from addresses to values, stored as runs of bytes with equal values.
//!
//! A run is an entry of a `BTreeMap` with its first address as the key. Setting or changing part of a run splits it, and equal neighbours
//! are merged again. So the number of runs depends on how many values differ, not on how often they were set. Every operation costs O(log
//! n) plus the runs that it visits.
//!
//! Invariant: runs are not empty and do not overlap, and adjacent runs have different values.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

/// A map from addresses to values; see the module.
#[derive(Debug)]
pub(super) struct IntervalMap<T> {
    runs: BTreeMap<usize, Run<T>>,
}

#[derive(Debug)]
struct Run<T> {
    end: usize,
    value: T,
}

impl<T> Default for IntervalMap<T> {
    fn default() -> IntervalMap<T> {
        IntervalMap { runs: BTreeMap::new() }
    }
}

impl<T: Clone + PartialEq> IntervalMap<T> {
    /// Sets every byte of `range` to this value.
    pub(super) fn set(&mut self, range: Range<usize>, value: T) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        self.runs.insert(range.start, Run { end: range.end, value });
        self.merge(range);
    }

    /// Removes the bytes of `range` from the map.
    pub(super) fn remove(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let inside: SmallVec<[usize; 8]> = self.runs.range(range).map(|(&start, _)| start).collect();
        for start in inside {
            self.runs.remove(&start);
        }
    }

    /// The run that contains `address`.
    pub(super) fn at(&self, address: usize) -> Option<(Range<usize>, &T)> {
        let (&start, run) = self.runs.range(..=address).next_back()?;
        (address < run.end).then_some((start..run.end, &run.value))
    }

    /// The contents of `range` in order, without gaps: the runs, cut to the range, and `None` between them.
    pub(super) fn cover(&self, range: Range<usize>) -> SmallVec<[(Range<usize>, Option<&T>); 4]> {
        let mut pieces = SmallVec::new();
        let mut reached = range.start;
        if range.is_empty() {
            return pieces;
        }
        let first = self.at(range.start).map_or(range.start, |(run, _)| run.start);
        for (&start, run) in self.runs.range(first..range.end) {
            let start = start.max(range.start);
            if reached < start {
                pieces.push((reached..start, None));
            }
            reached = run.end.min(range.end);
            pieces.push((start..reached, Some(&run.value)));
        }
        if reached < range.end {
            pieces.push((reached..range.end, None));
        }
        pieces
    }

    /// Calls `change` for each run within `range`, in order; bytes without a value are skipped.
    pub(super) fn change(&mut self, range: Range<usize>, mut change: impl FnMut(Range<usize>, &mut T)) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        for (&start, run) in self.runs.range_mut(range.clone()) {
            change(start..run.end, &mut run.value);
        }
        self.merge(range);
    }

    /// The number of runs.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Splits the run that spans `address`, if there is one.
    fn split(&mut self, address: usize) {
        let Some((_, run)) = self.runs.range_mut(..address).next_back() else {
            return;
        };
        if address < run.end {
            let right = Run { end: run.end, value: run.value.clone() };
            run.end = address;
            self.runs.insert(address, right);
        }
    }

    /// Merges equal neighbours at every border within `range`, including its ends.
    fn merge(&mut self, range: Range<usize>) {
        let first = self.runs.range(..range.start).next_back().map_or(range.start, |(&start, _)| start);
        let mut gone: SmallVec<[usize; 8]> = SmallVec::new();
        let mut left: Option<&mut Run<T>> = None;
        for (&start, run) in self.runs.range_mut(first..=range.end) {
            match &mut left {
                Some(left) if left.end == start && left.value == run.value => {
                    left.end = run.end;
                    gone.push(start);
                }
                _ => left = Some(run),
            }
        }
        for start in gone {
            self.runs.remove(&start);
        }
    }
}

#[cfg(test)]
#[path = "interval_tests.rs"]
mod tests;

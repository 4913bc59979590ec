//! The search: which free block a request gets.
//!
//! A bounded search of the lists comes first. It may miss a block. So a request that must not fail while memory is available
//! ([`Want::Any`], [`Want::Passed`]) continues with a full search, and then with a search for runs of free neighbours. These two
//! are linear in the number of blocks; without them, the request would need a driver call or a wait for pending work.

use super::Allocator;
use super::classes::Class;
use super::records::{NONE, State};
use crate::{Point, StreamId};

/// Candidates that are checked in one size class before the search continues with the next larger one. The first candidate is the
/// block that was freed last. A few more find the requesting stream's own block among those of three other streams, the number that
/// copies in, compute and copies out use beside it.
pub const CANDIDATES_PER_CLASS: usize = 4;

/// Candidates that are checked over all classes: this bounds the time of a request. A check costs one cache line of the record, and
/// one call of `passed` per pending point.
pub const CANDIDATES: usize = 16;

/// The blocks that a request accepts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Want {
    /// Any block that fits, preferably one that needs no wait. `None` only when no free block fits, even after merging neighbours.
    Any {
        /// The stream of the first access.
        stream: StreamId,
    },
    /// Only a block that needs no wait: each of its accesses has passed or is ordered by the stream itself. The first step of OOM
    /// recovery. Its time is bounded, so `None` may also mean that such a block is past the candidates that were checked.
    NoWait {
        /// The stream of the first access.
        stream: StreamId,
    },
    /// Only a block whose accesses have all passed: the caller's own thread writes the block, and no stream orders that thread.
    /// `None` only when no memory of that kind fits, even after merging neighbours.
    Passed,
}

impl Allocator {
    /// A free block of at least `granules`, still in its list. Passed points of streams other than the requesting one have been
    /// removed from its accesses.
    pub(super) fn find(&mut self, granules: usize, want: Want, passed: &dyn Fn(Point) -> bool) -> Option<u32> {
        if let Some(index) = self.look(granules, want, passed, CANDIDATES_PER_CLASS, CANDIDATES) {
            return Some(index);
        }
        match want {
            Want::NoWait { .. } => None,
            Want::Passed => self
                .look(granules, want, passed, usize::MAX, usize::MAX)
                .or_else(|| self.merge_run(granules, Some(want), passed)),
            Want::Any { stream } => self
                .look(granules, want, passed, usize::MAX, usize::MAX)
                .or_else(|| self.merge_run(granules, Some(Want::NoWait { stream }), passed))
                .or_else(|| self.merge_run(granules, None, passed)),
        }
    }

    /// Searches the lists, from the class of the request to larger ones.
    fn look(
        &mut self,
        granules: usize,
        want: Want,
        passed: &dyn Fn(Point) -> bool,
        per_class: usize,
        total: usize,
    ) -> Option<u32> {
        let mut left = total;
        // The last block found in the smallest class with a fit, which is the one freed first: its points are the likeliest to pass
        // soon.
        let mut waiting: Option<(Class, u32)> = None;
        let mut class = Class::of(granules);
        loop {
            let mut index = self.lists.head(class);
            let mut here = per_class.min(left);
            while index != NONE && here > 0 {
                here -= 1;
                left -= 1;
                let record = &self.records[index];
                let next = record.next_free;
                if record.granules >= granules {
                    if self.suits(index, want, passed) {
                        return Some(index);
                    }
                    if waiting.is_none_or(|(smallest, _)| smallest == class) {
                        waiting = Some((class, index));
                    }
                }
                index = next;
            }
            match self.lists.next_after(class) {
                Some(next) if left > 0 => class = next,
                _ => break,
            }
        }
        match want {
            Want::Any { .. } => waiting.map(|(_, index)| index),
            Want::NoWait { .. } | Want::Passed => None,
        }
    }

    /// Whether this free block needs no wait for `want`. Prunes its accesses, unless the order of the stream alone is enough.
    #[inline]
    fn suits(&mut self, index: u32, want: Want, passed: &dyn Fn(Point) -> bool) -> bool {
        let accesses = &mut self.records[index].accesses;
        match want {
            Want::Any { stream } | Want::NoWait { stream } => {
                accesses.is_ordered_on(stream) || {
                    accesses.prune(passed);
                    accesses.is_ordered_on(stream)
                }
            }
            Want::Passed => {
                accesses.prune(passed);
                accesses.is_empty()
            }
        }
    }

    /// Merges free neighbours into one block of at least `granules`, and no more of them than needed. With `want`, merges only
    /// blocks that suit it.
    fn merge_run(&mut self, granules: usize, want: Option<Want>, passed: &dyn Fn(Point) -> bool) -> Option<u32> {
        if !self.unmerged {
            return None;
        }
        let mut unmerged = false;
        for start in self.records.indices() {
            // Each maximal run of free neighbours is visited once, from its lowest block.
            if self.records[start].state != State::Free || self.records.is_free(self.records[start].previous) {
                continue;
            }
            let (mut lowest, mut sum, mut index) = (start, 0usize, start);
            while self.records.is_free(index) {
                unmerged |= index != start;
                let next = self.records[index].next;
                if want.is_none_or(|want| self.suits(index, want, passed)) {
                    sum += self.records[index].granules;
                } else {
                    (lowest, sum) = (next, 0);
                }
                if sum >= granules {
                    self.merge_up_to(lowest, index);
                    self.records[lowest].accesses.prune(passed);
                    return Some(lowest);
                }
                index = next;
            }
        }
        self.unmerged = unmerged;
        None
    }

    /// Merges the free neighbours from `lowest` to `highest`, both included, into `lowest`, and adds it to its list.
    fn merge_up_to(&mut self, lowest: u32, highest: u32) {
        self.lists.remove(&mut self.records, lowest);
        let mut last = lowest;
        while last != highest {
            last = self.records[lowest].next;
            self.lists.remove(&mut self.records, last);
            self.absorb(lowest, last);
        }
        self.lists.push(&mut self.records, lowest);
    }
}

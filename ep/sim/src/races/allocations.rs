//! The allocations of ranges of memory, in program order. A trace calls an allocation a *life*.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::Label;

use crate::races::interval::IntervalMap;

/// The number of ended allocations to remember; the oldest are forgotten first. A forgotten allocation keeps its number, which is all
/// that the checks use; only the texts of findings become less detailed.
const MAX_ENDED: usize = 16 * 1024;

/// One allocation.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) range: Range<usize>,
    /// The number of its region; 0 if none was known when it began.
    pub(super) region: u64,
    pub(super) begun: Arc<Label>,
    pub(super) ended: Option<Arc<Label>>,
}

/// The allocations, and the one that began last at each address.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    known: HashMap<u64, Allocation>,
    latest: IntervalMap<u64>,
    count: u64,
    /// Allocations that have ended and are still remembered, in the order in which they ended.
    over: VecDeque<u64>,
}

impl Allocations {
    /// Begins an allocation; its number is higher than that of every earlier one.
    pub(super) fn begin(&mut self, range: Range<usize>, region: u64, label: &Label) -> u64 {
        self.count += 1;
        let id = self.count;
        self.latest.set(range.clone(), id);
        self.known.insert(id, Allocation { range, region, begun: Arc::new(label.clone()), ended: None });
        id
    }

    pub(super) fn end(&mut self, id: u64, label: &Label) {
        if let Some(allocation) = self.known.get_mut(&id)
            && allocation.ended.is_none()
        {
            allocation.ended = Some(Arc::new(label.clone()));
            self.over.push_back(id);
        }
        if self.over.len() > MAX_ENDED
            && let Some(oldest) = self.over.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn get(&self, allocation: u64) -> Option<&Allocation> {
        self.known.get(&allocation)
    }

    /// The allocations that began last in `range`, run by run; 0 where there was none.
    pub(super) fn latest(&self, range: Range<usize>) -> SmallVec<[(Range<usize>, u64); 4]> {
        let cover = self.latest.cover(range);
        cover.into_iter().map(|(run, allocation)| (run, allocation.copied().unwrap_or(0))).collect()
    }

    /// Removes the bytes from their allocations.
    pub(super) fn forget(&mut self, range: Range<usize>) {
        self.latest.remove(range);
    }
}

//! Failures: which points have failed, with the root cause of each.
//!
//! Poison belongs to points, not to storage. An instruction notes, when it is submitted, the points that wrote what it
//! reads, and looks here before it runs: one counter test while nothing has ever failed. A later write of the same
//! storage has another point, so it can neither hide an error from an earlier waiter nor inherit one.
//!
//! A failure is entered before its point is published as passed, so whoever has seen the point pass sees the failure.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hashbrown::{HashMap, HashSet};
use streamvm_instructions::Failure;
use streamvm_stream::Point;

use crate::commit::Span;
use crate::sync::unpoisoned;

/// How many failed points are remembered at least. An older one that no resource holds any more is forgotten: only the
/// ticket of its own submission could still ask.
const REMEMBERED: usize = 65_536;

/// How many root causes wait to be collected. An older one is logged, once, and no longer reported by `wait_all`.
const UNCOLLECTED: usize = 1024;

/// The failed points of one engine. Shared by all its threads.
#[derive(Default)]
pub(crate) struct Failures {
    count: AtomicU64,
    /// How many points are in the table.
    len: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Each with its place in program order and its root cause.
    failed: HashMap<Point, (u64, Arc<Failure>)>,
    /// In the order of failing.
    order: VecDeque<Point>,
    /// Root causes that no wait has returned yet, oldest first.
    uncollected: VecDeque<Arc<Failure>>,
}

impl Failures {
    /// Whether anything ever failed.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Enters a root cause; `order` is its instruction's place in program order.
    pub(crate) fn fail(&self, order: u64, failure: Arc<Failure>) {
        let mut table = unpoisoned(self.table.lock());
        if table.uncollected.len() == UNCOLLECTED
            && let Some(unseen) = table.uncollected.pop_front()
        {
            log::error!("nobody asked for this failure: {unseen}");
        }
        table.uncollected.push_back(failure.clone());
        table.enter(failure.point, order, failure);
        self.len.store(table.failed.len(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Enters a point that was skipped because of `root`.
    pub(crate) fn pass_on(&self, point: Point, order: u64, root: Arc<Failure>) {
        let mut table = unpoisoned(self.table.lock());
        table.enter(point, order, root);
        self.len.store(table.failed.len(), Ordering::Relaxed);
    }

    /// Whether the point is known to have failed.
    pub(crate) fn is_known(&self, point: Point) -> bool {
        self.any() && unpoisoned(self.table.lock()).failed.contains_key(&point)
    }

    /// The root cause of the first of `points` that failed.
    pub(crate) fn poison(&self, mut points: impl Iterator<Item = Point>) -> Option<Arc<Failure>> {
        if !self.any() {
            return None;
        }
        let table = unpoisoned(self.table.lock());
        points.find_map(|point| table.failed.get(&point)).map(|(_, root)| root.clone())
    }

    /// The outcome of a point, for a waiter: it counts as having collected the root cause.
    pub(crate) fn outcome(&self, point: Point) -> Option<Arc<Failure>> {
        if !self.any() {
            return None;
        }
        let mut table = unpoisoned(self.table.lock());
        let failure = table.failed.get(&point)?.1.clone();
        table.collect(&failure);
        Some(failure)
    }

    /// The root cause of the first failed point within `spans`, in program order.
    pub(crate) fn first_within(&self, spans: &[Span]) -> Option<Arc<Failure>> {
        if !self.any() {
            return None;
        }
        let mut table = unpoisoned(self.table.lock());
        let points = |span: &Span| {
            let stream = span.stream;
            (span.first..=span.last).map(move |seq| Point::new(stream, seq))
        };
        // A submission is mostly shorter than the table.
        let failed = spans.iter().flat_map(points).filter_map(|point| table.failed.get(&point));
        let failure = failed.min_by_key(|(order, _)| *order).map(|(_, root)| root.clone())?;
        table.collect(&failure);
        Some(failure)
    }

    /// Takes the root causes that nobody has collected.
    pub(crate) fn take_uncollected(&self) -> VecDeque<Arc<Failure>> {
        if !self.any() {
            return VecDeque::new();
        }
        std::mem::take(&mut unpoisoned(self.table.lock()).uncollected)
    }

    /// The oldest failed points beyond the last [`REMEMBERED`], once there are twice as many, but those in `needed`.
    pub(crate) fn excess(&self, needed: impl Fn() -> HashSet<Point>) -> Vec<Point> {
        if self.len.load(Ordering::Relaxed) < 2 * REMEMBERED {
            return Vec::new();
        }
        let needed = needed();
        let mut table = unpoisoned(self.table.lock());
        let old = table.order.len().saturating_sub(REMEMBERED);
        let (kept, excess) = table.order.drain(..old).partition::<Vec<Point>, _>(|point| needed.contains(point));
        table.order.extend(kept);
        excess
    }

    /// Forgets points: nothing that is pending, and no resource, can ask for them any more.
    pub(crate) fn forget(&self, points: &[Point]) {
        let mut table = unpoisoned(self.table.lock());
        for point in points {
            table.failed.remove(point);
        }
        self.len.store(table.failed.len(), Ordering::Relaxed);
    }
}

impl Table {
    fn enter(&mut self, point: Point, order: u64, failure: Arc<Failure>) {
        self.failed.insert(point, (order, failure));
        self.order.push_back(point);
    }

    fn collect(&mut self, failure: &Arc<Failure>) {
        self.uncollected.retain(|other| !Arc::ptr_eq(other, failure));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::Location;

    use streamvm_ep::DeviceId;
    use streamvm_instructions::Cause;
    use streamvm_stream::{StreamId, StreamKey, StreamType};

    use super::*;

    fn point(seq: u64) -> Point {
        Point::new(StreamId(0), seq)
    }

    fn failure(seq: u64) -> Arc<Failure> {
        let stream = StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0);
        let cause = Cause::Function(format!("number {seq}"));
        Arc::new(Failure { point: point(seq), stream, what: "test".to_owned(), site: Location::caller(), cause })
    }

    #[test]
    fn what_nobody_collects_is_bounded_and_the_oldest_go_first() {
        let failures = Failures::default();
        (1..=UNCOLLECTED as u64 + 2).for_each(|seq| failures.fail(seq, failure(seq)));
        assert!(failures.outcome(point(5)).is_some(), "a wait collects it");
        let left: Vec<u64> = failures.take_uncollected().iter().map(|failure| failure.point.seq).collect();
        let expected: Vec<u64> = (3..=UNCOLLECTED as u64 + 2).filter(|seq| *seq != 5).collect();
        assert_eq!(left, expected);
        assert!(failures.outcome(point(1)).is_some(), "its own waiters are still told");
    }

    #[test]
    fn old_points_are_forgotten_but_those_that_a_resource_holds() {
        let failures = Failures::default();
        let root = failure(1);
        (1..=2 * REMEMBERED as u64 - 1).for_each(|seq| failures.pass_on(point(seq), seq, root.clone()));
        failures.fail(0, root.clone());
        assert!(failures.excess(|| panic!("not crowded yet")).is_empty());
        failures.pass_on(point(2 * REMEMBERED as u64), 0, root);
        let excess = failures.excess(|| HashSet::from([point(7)]));
        assert!(excess.contains(&point(6)) && !excess.contains(&point(7)));
        failures.forget(&excess);
        assert!(failures.poison([point(6)].into_iter()).is_none());
        assert!(failures.poison([point(7)].into_iter()).is_some());
        assert!(failures.poison([point(2 * REMEMBERED as u64)].into_iter()).is_some());
    }

    #[test]
    fn a_submission_s_first_failure_is_the_first_in_program_order() {
        let failures = Failures::default();
        failures.fail(9, failure(4));
        failures.fail(3, failure(8));
        let spans = [Span { stream: StreamId(0), first: 1, last: 8 }];
        assert_eq!(failures.first_within(&spans).map(|first| first.point.seq), Some(8));
        let none = [Span { stream: StreamId(0), first: 5, last: 7 }];
        assert!(failures.first_within(&none).is_none());
    }
}

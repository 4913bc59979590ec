//! Failures: which points have failed, with the root cause of each.
//!
//! Poison belongs to points, not to storage. An instruction notes, when it is submitted, the points that wrote what it
//! reads, and looks here before it runs: one counter test while nothing has ever failed. A later write of the same
//! storage has another point, so it can neither hide an error from an earlier waiter nor inherit one.
//!
//! A failure is entered before its point is published as passed, so whoever has seen the point pass sees the failure.
//!
//! A root cause that nobody has asked for is logged once: when no tensor or variable carries it any more (looked for now
//! and then by submissions, see [`Failures::find_unseen`]), when too many wait to be collected, or when the engine ends.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use streamvm_instructions::Failure;
use streamvm_stream::Point;

use crate::commit::Span;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, unpoisoned};

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
    /// How many root causes nobody has asked for and no log has.
    silent: AtomicUsize,
    /// There is something in `to_log`.
    any_to_log: AtomicBool,
    table: Mutex<Table>,
}

/// A root cause that no wait has returned yet.
#[derive(Debug)]
pub(crate) struct Uncollected {
    pub(crate) failure: Arc<Failure>,
    /// In the order of failing.
    number: u64,
    pub(crate) logged: bool,
}

impl Uncollected {
    /// Logs it, unless that was done before.
    pub(crate) fn log(&self) {
        if !self.logged {
            log::error!("nobody asked for this failure: {}", self.failure);
        }
    }
}

/// A search for root causes that no resource carries.
struct Search {
    /// It is for those that failed before this one.
    before: u64,
    /// What must pass first: what was submitted before may still pass the poison on.
    marks: Vec<Point>,
}

#[derive(Default)]
struct Table {
    /// Each with its place in program order and its root cause.
    failed: HashMap<Point, (u64, Arc<Failure>)>,
    /// In the order of failing.
    order: VecDeque<Point>,
    /// Root causes that no wait has returned yet, oldest first.
    uncollected: VecDeque<Uncollected>,
    /// How many root causes there were.
    numbers: u64,
    search: Option<Search>,
    /// So many submissions pass before the next search.
    pause: usize,
    to_log: Vec<Uncollected>,
}

impl Failures {
    /// Whether anything ever failed.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Enters a root cause; `order` is its instruction's place in program order.
    pub(crate) fn fail(&self, order: u64, failure: Arc<Failure>) {
        let mut table = unpoisoned(self.table.lock());
        let full = table.uncollected.len() == UNCOLLECTED;
        let oldest = if full { table.uncollected.pop_front() } else { None };
        let number = table.numbers;
        table.numbers += 1;
        table.uncollected.push_back(Uncollected { failure: failure.clone(), number, logged: false });
        table.enter(failure.point, order, failure);
        self.len.store(table.failed.len(), Ordering::Relaxed);
        // Under the lock, as every change of it.
        let forgotten = usize::from(oldest.as_ref().is_some_and(|oldest| !oldest.logged));
        self.silent.store(self.silent.load(Ordering::Relaxed) + 1 - forgotten, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
        drop(table);
        if let Some(oldest) = oldest {
            oldest.log();
        }
    }

    fn note_silent(&self, table: &Table) {
        let silent = table.uncollected.iter().filter(|uncollected| !uncollected.logged).count();
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Looks for root causes that nobody has asked for and that no resource carries, for [`Failures::log_unseen`]. Called
    /// by each submission; most of the time one load. The resources are looked at once for about as many submissions as
    /// there are resources, after everything has passed that was submitted when the search began. `last_writes` are the
    /// points that resources carry.
    pub(crate) fn find_unseen(
        &self,
        submitted: impl FnOnce() -> Vec<Point>,
        has_passed: impl Fn(Point) -> bool,
        last_writes: impl FnOnce() -> HashSet<Point>,
    ) {
        if self.silent.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut table = unpoisoned(self.table.lock());
        if table.pause > 0 {
            table.pause -= 1;
            return;
        }
        let Some(Search { before, marks }) = &table.search else {
            table.search = Some(Search { before: table.numbers, marks: submitted() });
            return;
        };
        if !marks.iter().all(|mark| has_passed(*mark)) {
            return;
        }
        let (before, last_writes) = (*before, last_writes());
        table.search = None;
        table.pause = last_writes.len();
        let Table { failed, uncollected, to_log, .. } = &mut *table;
        let carried: HashSet<*const Failure> =
            last_writes.iter().filter_map(|point| failed.get(point)).map(|(_, root)| Arc::as_ptr(root)).collect();
        for unseen in uncollected.iter_mut().filter(|one| one.number < before && !one.logged) {
            if !carried.contains(&Arc::as_ptr(&unseen.failure)) {
                to_log.push(Uncollected { failure: unseen.failure.clone(), ..*unseen });
                unseen.logged = true;
            }
        }
        self.any_to_log.store(!to_log.is_empty(), Ordering::Relaxed);
        self.note_silent(&table);
    }

    /// Logs what [`Failures::find_unseen`] has found. Called without locks: loggers are user code.
    #[inline]
    pub(crate) fn log_unseen(&self) {
        if self.any_to_log.load(Ordering::Relaxed) {
            self.log_found();
        }
    }

    #[cold]
    fn log_found(&self) {
        self.any_to_log.store(false, Ordering::Relaxed);
        let to_log = std::mem::take(&mut unpoisoned(self.table.lock()).to_log);
        to_log.iter().for_each(Uncollected::log);
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
        self.note_silent(&table);
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
        self.note_silent(&table);
        Some(failure)
    }

    /// Takes the root causes that nobody has collected.
    pub(crate) fn take_uncollected(&self) -> VecDeque<Uncollected> {
        if !self.any() {
            return VecDeque::new();
        }
        let mut table = unpoisoned(self.table.lock());
        self.silent.store(0, Ordering::Relaxed);
        std::mem::take(&mut table.uncollected)
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
        match self.failed.insert(point, (order, failure)) {
            None => self.order.push_back(point),
            // It failed by itself before it was known that it should not have run: nobody is to hear of that.
            Some((_, own)) if own.point == point => self.collect(&own),
            Some(_) => {}
        }
    }

    fn collect(&mut self, failure: &Arc<Failure>) {
        self.uncollected.retain(|other| !Arc::ptr_eq(&other.failure, failure));
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
        let what = "test".to_owned();
        Arc::new(Failure { point: point(seq), number: seq, stream, what, site: Location::caller(), cause })
    }

    #[test]
    fn what_nobody_collects_is_bounded_and_the_oldest_go_first() {
        let failures = Failures::default();
        (1..=UNCOLLECTED as u64 + 2).for_each(|seq| failures.fail(seq, failure(seq)));
        assert!(failures.outcome(point(5)).is_some(), "a wait collects it");
        let left: Vec<u64> = failures.take_uncollected().iter().map(|one| one.failure.point.seq).collect();
        let expected: Vec<u64> = (3..=UNCOLLECTED as u64 + 2).filter(|seq| *seq != 5).collect();
        assert_eq!(left, expected);
        assert!(failures.outcome(point(1)).is_some(), "its own waiters are still told");
    }

    /// Runs `find_unseen` until it has searched, with everything passed; returns what it would log.
    fn searched(failures: &Failures, last_writes: &[u64]) -> Vec<u64> {
        for _ in 0..2 * last_writes.len() + 2 {
            failures.find_unseen(Vec::new, |_| true, || last_writes.iter().map(|seq| point(*seq)).collect());
        }
        let found = std::mem::take(&mut unpoisoned(failures.table.lock()).to_log);
        found.iter().map(|one| one.failure.point.seq).collect()
    }

    #[test]
    fn what_no_resource_carries_and_nobody_has_asked_for_is_found_once() {
        let failures = Failures::default();
        let (one, two, three) = (failure(1), failure(2), failure(3));
        [&one, &two, &three].into_iter().for_each(|root| failures.fail(root.point.seq, root.clone()));
        failures.pass_on(point(9), 9, two);
        assert!(failures.outcome(point(3)).is_some(), "a wait collects it");
        assert_eq!(searched(&failures, &[9, 50]), [1], "2 is carried by what 9 wrote, 3 was collected");
        assert_eq!(searched(&failures, &[9, 50]), [] as [u64; 0], "once");
        assert_eq!(searched(&failures, &[50]), [2], "nothing carries it any more");
        let left: Vec<(u64, bool)> =
            failures.take_uncollected().iter().map(|one| (one.failure.point.seq, one.logged)).collect();
        assert_eq!(left, [(1, true), (2, true)], "it is still reported to who asks");
        assert_eq!(failures.silent.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_may_still_be_passed_on_is_not_called_unseen() {
        let failures = Failures::default();
        failures.fail(1, failure(1));
        let search = |passed| failures.find_unseen(|| vec![point(5)], |_| passed, HashSet::new);
        (0..5).for_each(|_| search(false));
        assert!(unpoisoned(failures.table.lock()).to_log.is_empty(), "something is pending");
        failures.fail(2, failure(2));
        search(true);
        let found: Vec<u64> =
            unpoisoned(failures.table.lock()).to_log.iter().map(|one| one.failure.point.seq).collect();
        assert_eq!(found, [1], "2 failed after the search began");
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

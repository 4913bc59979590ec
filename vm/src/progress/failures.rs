//! Failures: the points that have failed, each with its root cause.
//!
//! Poison belongs to points, not to storage. At submission an instruction notes the points that wrote its inputs. Before it runs,
//! those points are looked up here; while nothing has ever failed, that is one load. A later write of the same storage has another
//! point, so it can neither hide an error from an earlier waiter nor inherit one. A successful write of the whole storage therefore *heals*
//! it: later readers look up the point of that write, which has not failed. So does a clean-up that overwrites its outputs; a clean-up that
//! also reads one of them passes the failure on, because a part of the failed contents may remain (`State::clean_up` in `submit/commit.rs`).
//!
//! A failure is entered before its point is published as passed, so a thread that has seen the point pass sees the failure.
//!
//! An old point is forgotten once no lookup can ask for it any more: it is not the last write of a resource, and no pending
//! instruction reads it. Tickets and waiters do not need the table, because they have [claims](crate::progress::claims); those of
//! submissions before the engine's first failure have none, so failures of these are kept for ever.
//!
//! A root cause that no caller has asked for is logged once: when no tensor or variable carries it any more (submissions search for
//! such causes now and then, see [`Failures::find_unseen`]), when too many wait to be collected, or when the engine ends.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use streamvm_instructions::Failure;
use streamvm_stream::{Point, StreamId};

use crate::progress::claims::{Awaited, Claim, Claims};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, unpoisoned};

/// The numbers that one submission has on one stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) stream: StreamId,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// Bounds of the table.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FailureLimits {
    /// Failed points that are always kept. With twice as many, the table checks which ones are still needed, which visits all
    /// resources.
    pub(crate) points: usize,
    /// The most root causes that wait to be collected, at least 2. Beyond that, the first and the newest ones are kept; each
    /// dropped one is logged once, and `wait_all` does not return it any more.
    pub(crate) uncollected: usize,
}

impl Default for FailureLimits {
    fn default() -> FailureLimits {
        FailureLimits { points: 4096, uncollected: 1024 }
    }
}

/// The failed points of one engine. All its threads share it; the table is behind a lock, the counters are atomic.
pub(crate) struct Failures {
    limits: FailureLimits,
    count: AtomicU64,
    /// The number of points in the table that may be forgotten later.
    len: AtomicUsize,
    /// The number at which the table checks which points are still needed. Written under the lock of the table.
    limit: AtomicUsize,
    /// The number of root causes that were neither collected nor logged.
    silent: AtomicUsize,
    /// Whether `to_log` is not empty.
    any_to_log: AtomicBool,
    table: Mutex<Table>,
}

/// A root cause that no wait has returned yet.
#[derive(Debug)]
pub(crate) struct Uncollected {
    pub(crate) failure: Arc<Failure>,
    /// Its position in the order of failing.
    number: u64,
    pub(crate) logged: bool,
}

/// Logs failures, but those that were logged before. Those that follow one another, of one name and with one cause, are one line.
pub(crate) fn log_all<'f>(failures: impl IntoIterator<Item = &'f Uncollected>) {
    let mut failures = failures.into_iter().filter(|one| !one.logged).peekable();
    while let Some(Uncollected { failure: first, .. }) = failures.next() {
        let is_alike =
            |Uncollected { failure, .. }: &&Uncollected| (&failure.what, &failure.cause) == (&first.what, &first.cause);
        let mut more = 0u64;
        while failures.next_if(is_alike).is_some() {
            more += 1;
        }
        match more {
            0 => log::error!("nobody asked for this failure: {first}"),
            _ => log::error!("nobody asked for this failure, nor for {more} more like it: {first}"),
        }
    }
}

/// A search for root causes that no resource carries.
struct Search {
    /// Covers the root causes with a lower number.
    before: u64,
    /// Points that must pass first: instructions submitted before the search may still pass the poison on.
    marks: Vec<Point>,
}

#[derive(Default)]
struct Table {
    /// Each failed point, with its position in program order and its root cause.
    failed: HashMap<Point, (u64, Arc<Failure>)>,
    /// The points that may be forgotten later, in the order of failing.
    order: VecDeque<Point>,
    claims: Claims,
    /// Root causes that no wait has returned yet, oldest first.
    uncollected: VecDeque<Uncollected>,
    /// The number of root causes so far.
    numbers: u64,
    search: Option<Search>,
    /// Submissions to skip before the next search.
    pause: usize,
    to_log: Vec<Uncollected>,
    /// Other texts to log.
    texts: Vec<String>,
}

impl Default for Failures {
    fn default() -> Failures {
        Failures::new(FailureLimits::default())
    }
}

impl Failures {
    /// An empty table.
    pub(crate) fn new(limits: FailureLimits) -> Failures {
        let limits = FailureLimits { uncollected: limits.uncollected.max(2), ..limits };
        Failures {
            limits,
            count: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            limit: AtomicUsize::new(2 * limits.points),
            silent: AtomicUsize::new(0),
            any_to_log: AtomicBool::new(false),
            table: Mutex::default(),
        }
    }

    /// Whether anything ever failed.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Enters a root cause; `order` is the position of its instruction in program order.
    pub(crate) fn fail(&self, order: u64, failure: Arc<Failure>) {
        let mut table = unpoisoned(self.table.lock());
        // The first one stays, because `wait_all` returns it.
        let full = table.uncollected.len() == self.limits.uncollected;
        let second = if full { table.uncollected.remove(1) } else { None };
        let number = table.numbers;
        table.numbers += 1;
        table.uncollected.push_back(Uncollected { failure: failure.clone(), number, logged: false });
        table.enter(failure.point, order, failure);
        self.len.store(table.order.len(), Ordering::Relaxed);
        // Written under the lock, as everywhere.
        let forgotten = usize::from(second.as_ref().is_some_and(|second| !second.logged));
        self.silent.store(self.silent.load(Ordering::Relaxed) + 1 - forgotten, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
        drop(table);
        if let Some(second) = second {
            log_all([&second]);
        }
    }

    fn note_silent(&self, table: &Table) {
        let silent = table.uncollected.iter().filter(|uncollected| !uncollected.logged).count();
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Searches for root causes that were not collected and that no resource carries, for [`Failures::log_unseen`]. Each submission
    /// calls this; most calls are one load. A search first waits until everything has passed that was submitted when it began:
    /// `submitted` visits `nodes` dependence nodes to find that out. Then it visits all resources: `last_writes` returns the points that
    /// these carry. There is one search in about as many submissions as it visits nodes and resources.
    pub(crate) fn find_unseen(
        &self,
        nodes: usize,
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
        let Some(Search { before, marks }) = &mut table.search else {
            table.search = Some(Search { before: table.numbers, marks: submitted() });
            return;
        };
        if !all_have_passed(marks, has_passed) {
            return;
        }
        let (before, last_writes) = (*before, last_writes());
        table.search = None;
        table.pause = nodes + last_writes.len();
        let Table { failed, uncollected, to_log, .. } = &mut *table;
        let carried: HashSet<*const Failure> =
            last_writes.iter().filter_map(|point| failed.get(point)).map(|(_, root)| Arc::as_ptr(root)).collect();
        for unseen in uncollected.iter_mut().filter(|one| one.number < before && !one.logged) {
            if !carried.contains(&Arc::as_ptr(&unseen.failure)) {
                to_log.push(Uncollected { failure: unseen.failure.clone(), ..*unseen });
                unseen.logged = true;
            }
        }
        if !to_log.is_empty() {
            self.any_to_log.store(true, Ordering::Relaxed);
        }
        self.note_silent(&table);
    }

    /// Has a text logged by the next [`Failures::log_unseen`], because the caller holds a lock.
    #[cold]
    pub(crate) fn log_later(&self, text: String) {
        unpoisoned(self.table.lock()).texts.push(text);
        self.any_to_log.store(true, Ordering::Relaxed);
    }

    /// Whether something waits for [`Failures::log_unseen`].
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn has_to_log(&self) -> bool {
        self.any_to_log.load(Ordering::Relaxed)
    }

    /// Logs what [`Failures::find_unseen`] has found, and the texts of [`Failures::log_later`]. The caller holds no lock, because loggers are
    /// user code.
    #[inline]
    pub(crate) fn log_unseen(&self) {
        if self.any_to_log.load(Ordering::Relaxed) {
            self.log_found();
        }
    }

    #[cold]
    fn log_found(&self) {
        self.any_to_log.store(false, Ordering::Relaxed);
        let (to_log, texts) = {
            let mut table = unpoisoned(self.table.lock());
            (std::mem::take(&mut table.to_log), std::mem::take(&mut table.texts))
        };
        log_all(&to_log);
        texts.iter().for_each(|text| log::error!("{text}"));
    }

    /// Enters a point that was skipped because of `root`.
    pub(crate) fn pass_on(&self, point: Point, order: u64, root: Arc<Failure>) {
        let mut table = unpoisoned(self.table.lock());
        table.enter(point, order, root);
        self.len.store(table.order.len(), Ordering::Relaxed);
    }

    /// Whether the point is in the table of failed points.
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

    /// The claim of a submission with these positions in program order. The caller holds the submission lock and has published
    /// nothing of the submission yet.
    #[cold]
    pub(crate) fn claim(&self, first: u64, last: u64) -> Arc<Claim> {
        unpoisoned(self.table.lock()).claims.of_ticket(first, last)
    }

    /// A point that a caller is about to wait for. The caller holds the submission lock, and the point is the last write of a
    /// resource.
    pub(crate) fn await_point(&self, point: Point) -> Awaited {
        // While nothing has failed, all that was submitted is early and needs no claim.
        Awaited { point, claim: self.any().then(|| self.claim_point(point)) }
    }

    #[cold]
    fn claim_point(&self, point: Point) -> Arc<Claim> {
        let mut table = unpoisoned(self.table.lock());
        match table.failed.get(&point).cloned() {
            Some((order, failure)) => Claims::of_failed(order, failure),
            None => table.claims.of_point(point),
        }
    }

    /// The failure of a point that has passed, for a caller that has waited for it. The root cause counts as collected.
    pub(crate) fn outcome(&self, awaited: &Awaited) -> Option<Arc<Failure>> {
        match &awaited.claim {
            Some(claim) => self.collect_claim(claim),
            None => self.outcome_of_kept(awaited.point),
        }
    }

    /// The failure for the owner of a claim, once all that the claim covers has passed. The root cause counts as collected.
    pub(crate) fn collect_claim(&self, claim: &Claim) -> Option<Arc<Failure>> {
        let failure = claim.told()?;
        let mut table = unpoisoned(self.table.lock());
        table.collect(&failure);
        self.note_silent(&table);
        Some(failure)
    }

    /// The failure of a point that is early, or the last write of a resource. The root cause counts as collected.
    pub(crate) fn outcome_of_kept(&self, point: Point) -> Option<Arc<Failure>> {
        if !self.any() {
            return None;
        }
        let mut table = unpoisoned(self.table.lock());
        let failure = table.failed.get(&point)?.1.clone();
        table.collect(&failure);
        self.note_silent(&table);
        Some(failure)
    }

    /// The root cause of the first failed point, in program order, within `spans`, which are early. It counts as collected.
    pub(crate) fn first_within(&self, spans: &[Span]) -> Option<Arc<Failure>> {
        if !self.any() {
            return None;
        }
        let mut table = unpoisoned(self.table.lock());
        let points = |span: &Span| {
            let stream = span.stream;
            (span.first..=span.last).map(move |seq| Point::new(stream, seq))
        };
        // Lookups by point, because a submission usually has fewer points than the table.
        let failed = spans.iter().flat_map(points).filter_map(|point| table.failed.get(&point));
        let failure = failed.min_by_key(|(order, _)| *order).map(|(_, root)| root.clone())?;
        table.collect(&failure);
        self.note_silent(&table);
        Some(failure)
    }

    /// Takes all root causes that were not collected.
    pub(crate) fn take_uncollected(&self) -> VecDeque<Uncollected> {
        if !self.any() {
            return VecDeque::new();
        }
        let mut table = unpoisoned(self.table.lock());
        self.silent.store(0, Ordering::Relaxed);
        std::mem::take(&mut table.uncollected)
    }

    /// Takes old failed points that are not `needed` from the list of forgettable ones, once there are many. The caller may
    /// [forget](Failures::forget) them when everything has passed that was submitted before. `early` is the position in program
    /// order of the last instruction without a claim: failures up to there are kept for ever.
    pub(crate) fn excess(&self, early: u64, needed: impl Fn() -> HashSet<Point>) -> Vec<Point> {
        if self.len.load(Ordering::Relaxed) < self.limit.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let needed = needed();
        let mut table = unpoisoned(self.table.lock());
        let Table { failed, order, .. } = &mut *table;
        let old = order.len().saturating_sub(self.limits.points);
        let is_early = |point: &Point| failed.get(point).is_some_and(|(order, _)| *order <= early);
        let old: Vec<Point> = order.drain(..old).filter(|point| !is_early(point)).collect();
        let (kept, excess) = old.into_iter().partition::<Vec<Point>, _>(|point| needed.contains(point));
        order.extend(kept);
        // The next check comes after as many more failures as this one has visited points.
        self.limit.store(2 * self.limits.points.max(order.len()).max(needed.len()), Ordering::Relaxed);
        self.len.store(order.len(), Ordering::Relaxed);
        excess
    }

    /// Forgets points. No pending instruction and no resource can ask for them any more.
    pub(crate) fn forget(&self, points: &[Point]) {
        let mut table = unpoisoned(self.table.lock());
        for point in points {
            table.failed.remove(point);
        }
    }
}

/// Whether all of `marks` have passed. Removes those that were seen to have, so that repeated calls look at each of them once.
pub(crate) fn all_have_passed(marks: &mut Vec<Point>, has_passed: impl Fn(Point) -> bool) -> bool {
    while marks.pop_if(|mark| has_passed(*mark)).is_some() {}
    marks.is_empty()
}

impl Table {
    fn enter(&mut self, point: Point, order: u64, failure: Arc<Failure>) {
        self.claims.tell(point, order, &failure);
        match self.failed.insert(point, (order, failure)) {
            None => self.order.push_back(point),
            // It failed by itself before it was known that it should have been skipped. Its own failure is not reported.
            Some((_, own)) if own.point == point => self.collect(&own),
            Some(_) => {}
        }
    }

    fn collect(&mut self, failure: &Arc<Failure>) {
        self.uncollected.retain(|other| !Arc::ptr_eq(&other.failure, failure));
    }
}

#[cfg(all(test, not(loom)))]
#[path = "failures_tests.rs"]
mod tests;

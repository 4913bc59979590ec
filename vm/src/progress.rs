//! Progress: how far a stream is, and who waits for it.
//!
//! An ordered stream has one number that grows. Of an unordered one each instruction passes by itself: its cell tells
//! whether it has ([`Cells`]), and who waits for it is found by its number.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_stream::Timeline;

use crate::cells::{CellId, Cells};
use crate::pool::Pool;
use crate::sync::{AtomicU64, Mutex, Ordering, unpoisoned};
use crate::waiters::{Waiters, Wake};

/// See the module's comment.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all streams are ordered, and each instruction of theirs looks here"
)]
pub(crate) enum Progress {
    /// In order.
    Ordered(Ordered),
    /// Each by itself.
    Unordered(Box<Unordered>),
}

/// Progress of an ordered stream.
pub(crate) struct Ordered {
    /// Written by the context that runs the stream, read by all.
    pub(crate) timeline: Timeline,
    pub(crate) waiters: Waiters,
}

impl Ordered {
    pub(crate) fn new() -> Ordered {
        Ordered { timeline: Timeline::new(), waiters: Waiters::new() }
    }
}

/// Progress of an unordered stream.
pub(crate) struct Unordered {
    pub(crate) cells: Arc<Cells>,
    /// Who runs it; in inline mode whoever submits does.
    pub(crate) pool: Option<Arc<Pool>>,
    /// How many instructions each worker has passed, each written by one worker; behind them, how many all others have.
    passed: Box<[CachePadded<AtomicU64>]>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    by_number: HashMap<u64, SmallVec<[(u64, Wake); 1]>>,
    next_id: u64,
}

impl Unordered {
    pub(crate) fn new(cells: Arc<Cells>, pool: Option<Arc<Pool>>) -> Unordered {
        let workers = pool.as_ref().map_or(0, |pool| pool.workers());
        let passed = (0..=workers).map(|_| CachePadded::default()).collect();
        Unordered { cells, pool, passed, waiting: Mutex::default() }
    }

    /// Counts an instruction that `worker` is about to pass. Before that: who sees it pass sees the count.
    pub(crate) fn count(&self, worker: usize) {
        let passed = &self.passed[worker];
        passed.store(passed.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Counts an instruction that no worker is about to pass.
    pub(crate) fn count_other(&self) {
        self.passed[self.passed.len() - 1].fetch_add(1, Ordering::Release);
    }

    /// Something that the instruction of a cell needs is met, and none of its workers has seen to it: if that was the last, it
    /// is brought to them.
    pub(crate) fn meet(&self, id: CellId) {
        if self.cells.meet(id).is_some() {
            self.bring(id);
        }
    }

    /// Brings what is in a cell, and can run, to the workers.
    pub(crate) fn bring(&self, id: CellId) {
        if let (Some(pool), Some(job)) = (&self.pool, self.cells.take(id)) {
            pool.bring(job);
        }
    }

    /// How many instructions have passed, or are about to.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.iter().map(|passed| passed.load(Ordering::Acquire)).sum()
    }

    /// Has `wake` done once the instruction has passed; gives it back if it has.
    pub(crate) fn add(&self, number: u64, wake: Wake) -> Result<u64, Wake> {
        let mut waiting = unpoisoned(self.waiting.lock());
        if self.cells.has_passed(number) {
            return Err(wake);
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        waiting.by_number.entry(number).or_default().push((id, wake));
        if !self.cells.want(number) {
            return Ok(id);
        }
        // It passed between the look and the announcement, so nobody may come to wake it.
        waiting.take(number, id).map_or(Ok(id), Err)
    }

    /// Removes a waiter that gave up.
    pub(crate) fn remove(&self, number: u64, id: u64) {
        unpoisoned(self.waiting.lock()).take(number, id);
    }

    /// Wakes everyone who waits for this number, which has passed.
    pub(crate) fn wake(&self, number: u64) {
        let woken = unpoisoned(self.waiting.lock()).by_number.remove(&number);
        woken.into_iter().flatten().for_each(|(_, wake)| wake.wake());
    }
}

impl Waiting {
    fn take(&mut self, number: u64, id: u64) -> Option<Wake> {
        let waiters = self.by_number.get_mut(&number)?;
        let place = waiters.iter().position(|(other, _)| *other == id)?;
        let (_, wake) = waiters.swap_remove(place);
        if waiters.is_empty() {
            self.by_number.remove(&number);
        }
        Some(wake)
    }
}

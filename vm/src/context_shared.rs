//! What others see of a thread context: where instructions are put, the bed to wake it from, what it says of itself.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use streamvm_ep as ep;

use crate::beds::Beds;
use crate::context::Context;
use crate::entry::StreamEntry;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::intake::Intake;
use crate::job::Job;
use crate::sleep::Sleeper;
use crate::slot::{Chain, Slot};
use crate::stall::{Board, Running};
use crate::sync::{AtomicBool, AtomicU64, Mutex, unpoisoned};
use crate::tally::Tallies;

/// Places in a ring: so many submissions of one instruction can lie there before the next take the longer way. Eight bytes each; with one
/// core as many are submitted in a row.
const SINGLES: usize = 1024;

/// What others see of a context.
pub(crate) struct ContextShared {
    pub(crate) name: String,
    pub(crate) inbox: Inbox<Job>,
    /// What submissions of one instruction send, where a context runs streams.
    pub(crate) intake: Option<Intake<Job>>,
    pub(crate) sleeper: Arc<Sleeper>,
    /// The logic, while a thread serves it.
    pub(crate) driver: CachePadded<Mutex<Option<Context>>>,
    /// The thread waits for the turn, so nobody else takes it. Nothing is ordered by it.
    pub(crate) wants_turn: CachePadded<AtomicBool>,
    /// Instructions that callers have run while they waited. Written under the driver's lock.
    pub(crate) helped: AtomicU64,
    /// Streams that were opened for this context. Put here before the first job of the stream is sent.
    pub(crate) opened: Mutex<Vec<Opened>>,
    /// What it runs, for reports.
    pub(crate) running: Running,
    /// What it cannot run yet, for reports.
    pub(crate) heads: Board,
    /// Where several threads sleep that serve one inbox.
    pub(crate) beds: Option<Beds>,
    /// What it has run, where somebody asks.
    pub(crate) tallies: Mutex<Tallies>,
    /// Bytes that passed instructions no longer keep. Written by who has the turn alone, before it publishes their numbers.
    pub(crate) retired_bytes: CachePadded<AtomicU64>,
}

/// A stream that a context is to run.
pub(crate) struct Opened {
    pub(crate) entry: Arc<StreamEntry>,
    pub(crate) stream: Box<dyn ep::Stream>,
}

impl ContextShared {
    /// That of a context which runs streams.
    pub(crate) fn new(name: String) -> ContextShared {
        ContextShared { intake: Some(Intake::new(SINGLES)), ..ContextShared::of_worker(name) }
    }

    /// That of a worker.
    pub(crate) fn of_worker(name: String) -> ContextShared {
        ContextShared {
            name,
            inbox: Inbox::new(),
            intake: None,
            sleeper: Arc::new(Sleeper::new()),
            driver: CachePadded::default(),
            wants_turn: CachePadded::new(AtomicBool::new(false)),
            helped: AtomicU64::new(0),
            opened: Mutex::default(),
            running: Running::default(),
            heads: Board::default(),
            beds: None,
            tallies: Mutex::default(),
            retired_bytes: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The door to a pool, whose workers sleep in `beds`.
    pub(crate) fn door(name: String, beds: Beds) -> ContextShared {
        ContextShared { beds: Some(beds), ..ContextShared::of_worker(name) }
    }

    /// Puts a batch into the inbox.
    #[inline]
    pub(crate) fn send(&self, jobs: &mut Chain<Job>) {
        self.announce(jobs.len());
        self.inbox.push(jobs);
    }

    /// Puts a slot into the inbox.
    pub(crate) fn send_one(&self, job: Slot<Job>) {
        self.announce(1);
        self.inbox.push_one(job);
    }

    #[inline]
    fn announce(&self, count: usize) {
        if let Some(intake) = &self.intake {
            intake.others_are_sent(count);
        }
    }

    /// Whether there seems to be nothing to take: a cheap look.
    #[inline]
    pub(crate) fn seems_empty(&self) -> bool {
        self.inbox.is_empty() && self.intake.as_ref().is_none_or(Intake::is_empty)
    }

    /// Whether there is nothing to take, for the thread that takes, when it has announced that it will sleep. What goes into the ring
    /// is put there under the submission lock, as is the look whether somebody sleeps.
    pub(crate) fn is_surely_empty(&self, handle: &Handle) -> bool {
        let _inside = handle.lock();
        self.inbox.is_surely_empty() && self.intake.as_ref().is_none_or(Intake::is_empty)
    }

    /// Whether somebody must be woken to see what was put into the inbox.
    #[inline]
    pub(crate) fn is_sleeping(&self) -> bool {
        match &self.beds {
            None => self.sleeper.is_sleeping(),
            Some(beds) => beds.somebody_sleeps(),
        }
    }

    /// Wakes who takes from the inbox; one of them where there are several.
    pub(crate) fn wake(&self) {
        match &self.beds {
            None => self.sleeper.wake(),
            Some(beds) => beds.wake_one(),
        }
    }

    /// Gives the context a stream to run.
    pub(crate) fn open(&self, entry: Arc<StreamEntry>, stream: Box<dyn ep::Stream>) {
        unpoisoned(self.opened.lock()).push(Opened { entry, stream });
    }

    /// Lets go of streams that never had a job. They hold on to their context.
    pub(crate) fn forget_opened(&self) {
        let unused = std::mem::take(&mut *unpoisoned(self.opened.lock()));
        drop(unused);
    }
}

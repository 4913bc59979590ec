//! Flight: what was launched on a stream whose device runs its commands later, and has not passed yet.
//!
//! The context that launches the stream adds jobs and records; the completion (`completion.rs`) takes jobs out once an
//! event behind them has passed. An event stays in the pool from its record until its number is published, so a wait
//! that names it finds it, or finds that the number has passed. Two facts are asked for without the lock: how far
//! somebody wants to know (`demand`), and how far the last record shows (`recorded`).
//!
//! Nobody waiting, nobody polls: without demand, no event is recorded that soft sync did not ask for, and the completion
//! sleeps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use streamvm_ep::{self as ep, Device, EventId};

use crate::job::Job;
use crate::sleep::Sleeper;
use crate::slot::Slot;
use crate::sync::unpoisoned;

/// What is in flight on one stream.
pub(crate) struct Flight {
    pub(crate) device: Arc<dyn Device>,
    state: Mutex<State>,
    /// The highest number that somebody waits for.
    demand: AtomicU64,
    /// The highest number launched. Written by the stream's context.
    launched: AtomicU64,
    /// The highest number that a record shows, or that is known to be over.
    recorded: AtomicU64,
    /// Whom to wake when what is wanted can be waited for.
    completer: Arc<Sleeper>,
}

#[derive(Default)]
struct State {
    /// Launched or skipped, not passed, in order.
    jobs: VecDeque<Slot<Job>>,
    /// Made and not passed, in order.
    records: VecDeque<Record>,
    /// Numbers whose record failed: who needs one waits for the timeline.
    failed_records: VecDeque<u64>,
    /// Proven to be over up to here.
    complete: u64,
    /// Contexts with a head that waits for a record to be made.
    waiting: Vec<Arc<Sleeper>>,
    lost: Option<ep::Error>,
}

#[derive(Copy, Clone)]
struct Record {
    seq: u64,
    event: EventId,
}

/// How a point can be waited for by a device.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shown {
    /// By this event.
    By(EventId),
    /// Its record is not made yet.
    NotYet,
    /// Its record failed: only the timeline tells.
    ByNumber,
}

impl Flight {
    pub(crate) fn new(device: Arc<dyn Device>, completer: Arc<Sleeper>) -> Flight {
        let (demand, launched, recorded) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Flight { device, state: Mutex::default(), demand, launched, recorded, completer }
    }

    /// Somebody wants to know when `seq` has passed. Returns whether the stream's context must be woken.
    pub(crate) fn demand(&self, seq: u64) -> bool {
        self.demand.fetch_max(seq, Ordering::SeqCst);
        self.completer.wake();
        self.needs_record()
    }

    /// How far somebody wants to know.
    pub(crate) fn wanted(&self) -> u64 {
        self.demand.load(Ordering::SeqCst)
    }

    /// Whether what is wanted is launched and no record shows it.
    pub(crate) fn needs_record(&self) -> bool {
        let demand = self.demand.load(Ordering::SeqCst);
        demand > self.recorded.load(Ordering::SeqCst) && demand <= self.launched.load(Ordering::SeqCst)
    }

    /// The highest number launched.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::SeqCst)
    }

    /// Takes a job that was launched, or that failed or was skipped and passes in its turn.
    pub(crate) fn add(&self, job: Slot<Job>) {
        let seq = job.point.seq;
        unpoisoned(self.state.lock()).jobs.push_back(job);
        self.launched.store(seq, Ordering::SeqCst);
    }

    /// Notes that `event` was recorded behind `seq`, or that this failed.
    pub(crate) fn note_record(&self, seq: u64, event: Result<EventId, ()>) {
        let waiting = {
            let mut state = unpoisoned(self.state.lock());
            match event {
                Ok(event) => state.records.push_back(Record { seq, event }),
                Err(()) => state.failed_records.push_back(seq),
            }
            std::mem::take(&mut state.waiting)
        };
        if event.is_ok() {
            self.recorded.fetch_max(seq, Ordering::SeqCst);
        }
        waiting.iter().for_each(|sleeper| sleeper.wake());
        self.completer.wake();
    }

    /// How a device waits for `seq`, which has not passed.
    pub(crate) fn shown(&self, seq: u64) -> Shown {
        let state = unpoisoned(self.state.lock());
        Self::find(&state, seq)
    }

    fn find(state: &State, seq: u64) -> Shown {
        let next = state.records.partition_point(|record| record.seq < seq);
        match state.records.get(next) {
            Some(record) => Shown::By(record.event),
            None if state.lost.is_some() || state.failed_records.iter().any(|failed| *failed >= seq) => Shown::ByNumber,
            None => Shown::NotYet,
        }
    }

    /// Has `sleeper` woken at the next record, if none shows `seq` yet.
    pub(crate) fn when_shown(&self, seq: u64, sleeper: &Arc<Sleeper>) -> Shown {
        let mut state = unpoisoned(self.state.lock());
        let shown = Self::find(&state, seq);
        if shown == Shown::NotYet && !state.waiting.iter().any(|other| Arc::ptr_eq(other, sleeper)) {
            state.waiting.push(sleeper.clone());
        }
        shown
    }

    /// The device does nothing more: what is in flight fails.
    pub(crate) fn lose(&self, error: ep::Error) {
        let waiting = {
            let mut state = unpoisoned(self.state.lock());
            if state.lost.is_some() {
                return;
            }
            state.lost = Some(error);
            std::mem::take(&mut state.waiting)
        };
        // Nothing is recorded any more.
        self.recorded.store(u64::MAX, Ordering::SeqCst);
        waiting.iter().for_each(|sleeper| sleeper.wake());
        self.completer.wake();
    }

    /// Why `seq` cannot be over, if the device was lost before it was.
    pub(crate) fn lost_before(&self, seq: u64) -> Option<ep::Error> {
        let state = unpoisoned(self.state.lock());
        if seq > state.complete { state.lost.clone() } else { None }
    }

    /// Why the device does nothing more, if so.
    pub(crate) fn lost(&self) -> Option<ep::Error> {
        unpoisoned(self.state.lock()).lost.clone()
    }

    /// Everything up to `seq` is over, by what the caller has seen.
    pub(crate) fn complete(&self, seq: u64) {
        {
            let mut state = unpoisoned(self.state.lock());
            state.complete = state.complete.max(seq);
        }
        self.recorded.fetch_max(seq, Ordering::SeqCst);
        self.completer.wake();
    }

    /// Whether something is over and not taken.
    pub(crate) fn has_over(&self) -> bool {
        let state = unpoisoned(self.state.lock());
        state.jobs.front().is_some_and(|job| job.point.seq <= state.complete)
    }

    /// Asks the device how far the stream has come. Returns whether it has come further.
    pub(crate) fn query(&self) -> bool {
        let mut further = false;
        loop {
            let next = {
                let state = unpoisoned(self.state.lock());
                if state.lost.is_some() {
                    return further;
                }
                state.records.iter().find(|record| record.seq > state.complete).copied()
            };
            let Some(Record { seq, event }) = next else {
                return further;
            };
            match self.device.query(event) {
                Ok(true) => {
                    self.complete(seq);
                    further = true;
                }
                Ok(false) => return further,
                Err(error) => {
                    self.lose(error);
                    return true;
                }
            }
        }
    }

    /// The oldest event that somebody waits for, if there is one to wait for.
    pub(crate) fn awaited(&self, passed: u64) -> Option<EventId> {
        if self.wanted() <= passed {
            return None;
        }
        let state = unpoisoned(self.state.lock());
        if state.lost.is_some() {
            return None;
        }
        state.records.iter().find(|record| record.seq > state.complete).map(|record| record.event)
    }

    /// Takes the next job that is over, or, when the device is lost, the next that `may_fail`.
    pub(crate) fn take(&self, may_fail: impl Fn(&Job) -> bool) -> Option<Slot<Job>> {
        let mut state = unpoisoned(self.state.lock());
        let first = state.jobs.front()?;
        let over = first.point.seq <= state.complete || (state.lost.is_some() && may_fail(first));
        if over { state.jobs.pop_front() } else { None }
    }

    /// The first job in flight, as it is; for reports.
    pub(crate) fn with_first<T>(&self, f: impl FnOnce(&Job) -> T) -> Option<T> {
        unpoisoned(self.state.lock()).jobs.front().map(|job| f(job))
    }

    /// Gives the events back that show nothing beyond `passed`. The number is published, so nobody needs them.
    pub(crate) fn release_events(&self, passed: u64) {
        let mut state = unpoisoned(self.state.lock());
        while state.records.front().is_some_and(|record| record.seq <= passed) {
            if let Some(record) = state.records.pop_front()
                && let Err(error) = self.device.events().release(record.event)
            {
                log::error!("an event was given back twice: {error}");
            }
        }
        while state.failed_records.front().is_some_and(|failed| *failed <= passed) {
            state.failed_records.pop_front();
        }
    }
}

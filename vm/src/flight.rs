//! Flight: what was launched on a stream whose device runs its commands later, and has not passed yet.
//!
//! The context that launches the stream adds jobs and records; the completion (`completion.rs`) takes jobs out once an
//! event behind them has passed. An event stays in the pool from its record until its number is published, so a wait
//! that names it finds it, or finds that the number has passed.
//!
//! Nobody is missed: who waits says so under the lock (`demand`), then wakes the completion, and the context if it has to
//! record for it. A context or the completion that is about to sleep announces that first and then looks once more under
//! the lock: if it looked before the demand was there, the waker sees the announcement. The same for what is launched
//! and recorded. Looks without the lock are hints. `loom_tests` has the model, and a broken twin.
//!
//! Nobody waiting, nobody polls: without demand, no event is recorded that soft sync did not ask for, and the completion
//! sleeps.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use streamvm_ep::{self as ep, Device, EventId};

use crate::job::Job;
use crate::sleep::Sleeper;
use crate::slot::Slot;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, unpoisoned};

/// The lowest number that somebody waits for, when nobody does.
const NOBODY: u64 = u64::MAX;

/// What is in flight on one stream.
pub(crate) struct Flight {
    pub(crate) device: Arc<dyn Device>,
    state: Mutex<State>,
    /// The highest number that somebody waits for.
    demand: AtomicU64,
    /// The lowest number that somebody waits for and that nothing shows yet, or `NOBODY`. Not the highest: it may not be
    /// launched before who waits for less goes on.
    next: AtomicU64,
    /// The highest number launched. Written by the stream's context.
    launched: AtomicU64,
    /// The highest number that a record shows, or that is known to be over.
    recorded: AtomicU64,
    /// The device could not tell how far it is: the stream's context has to prove it.
    doubt: AtomicBool,
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
    /// What somebody waits for and nothing shows yet.
    unshown: BTreeSet<u64>,
    /// Contexts with a head that waits for a record to be made, or for a proof.
    waiting: Vec<Arc<Sleeper>>,
    lost: Option<ep::Error>,
}

impl State {
    /// Whether a job is over, or never will be.
    fn is_over(&self, job: &Job) -> bool {
        job.point.seq <= self.complete || self.lost.is_some()
    }
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
    /// Its record failed, or it is over: only the timeline tells.
    ByNumber,
}

impl Flight {
    pub(crate) fn new(device: Arc<dyn Device>, completer: Arc<Sleeper>) -> Flight {
        let (demand, launched, recorded) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let doubt = AtomicBool::new(false);
        let next = AtomicU64::new(NOBODY);
        Flight { device, state: Mutex::default(), demand, next, launched, recorded, doubt, completer }
    }

    /// Somebody wants to know when `seq` has passed. Returns whether the stream's context must be woken.
    pub(crate) fn demand(&self, seq: u64) -> bool {
        let needs = {
            let mut state = unpoisoned(self.state.lock());
            self.demand.fetch_max(seq, Ordering::SeqCst);
            if seq > self.recorded.load(Ordering::SeqCst) {
                state.unshown.insert(seq);
                self.next.fetch_min(seq, Ordering::SeqCst);
            }
            self.needs_record()
        };
        self.completer.wake();
        needs
    }

    /// How far somebody wants to know.
    pub(crate) fn wanted(&self) -> u64 {
        self.demand.load(Ordering::SeqCst)
    }

    /// Whether what is wanted is launched and no record shows it.
    pub(crate) fn needs_record(&self) -> bool {
        let next = self.next.load(Ordering::SeqCst);
        next > self.recorded.load(Ordering::SeqCst) && next <= self.launched.load(Ordering::SeqCst)
    }

    /// Everything up to `seq` is shown, or needs not be.
    fn note_shown(&self, state: &mut State, seq: u64) {
        let shown = self.recorded.fetch_max(seq, Ordering::SeqCst).max(seq);
        while state.unshown.first().is_some_and(|first| *first <= shown) {
            state.unshown.pop_first();
        }
        self.next.store(state.unshown.first().copied().unwrap_or(NOBODY), Ordering::SeqCst);
    }

    /// Whether the stream's context has something to do for whoever waits.
    pub(crate) fn needs_attention(&self) -> bool {
        self.needs_record() || self.is_in_doubt()
    }

    /// [`Flight::needs_attention`], for a context about to sleep: whoever asks later wakes it.
    pub(crate) fn surely_needs_attention(&self) -> bool {
        let _state = unpoisoned(self.state.lock());
        self.needs_attention()
    }

    /// The highest number launched.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::SeqCst)
    }

    /// Takes a job that was launched, or that failed or was skipped and passes in its turn.
    pub(crate) fn add(&self, job: Slot<Job>) {
        let seq = job.point.seq;
        let lost = {
            let mut state = unpoisoned(self.state.lock());
            state.jobs.push_back(job);
            self.launched.store(seq, Ordering::SeqCst);
            state.lost.is_some()
        };
        // Nothing will be recorded that could wake it.
        if lost {
            self.completer.wake();
        }
    }

    /// Notes that `event` was recorded behind `seq`, or that this failed.
    pub(crate) fn note_record(&self, seq: u64, event: Result<EventId, ()>) {
        let waiting = {
            let mut state = unpoisoned(self.state.lock());
            match event {
                Ok(event) => {
                    state.records.push_back(Record { seq, event });
                    self.note_shown(&mut state, seq);
                }
                Err(()) => state.failed_records.push_back(seq),
            }
            std::mem::take(&mut state.waiting)
        };
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
            // Its event may have been given back already.
            None if seq <= state.complete => Shown::ByNumber,
            None if state.lost.is_some() || state.failed_records.iter().any(|failed| *failed >= seq) => Shown::ByNumber,
            None => Shown::NotYet,
        }
    }

    /// Has `sleeper` woken at the next record or proof, if none shows `seq` yet.
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
        let error = match error {
            lost @ ep::Error::DeviceLost { .. } => lost,
            other => ep::Error::DeviceLost { device: self.device.id(), reason: other.to_string() },
        };
        let waiting = {
            let mut state = unpoisoned(self.state.lock());
            if state.lost.is_some() {
                return;
            }
            state.lost = Some(error);
            // Nothing is recorded any more, and nothing is left to prove.
            self.note_shown(&mut state, u64::MAX);
            self.doubt.store(false, Ordering::SeqCst);
            std::mem::take(&mut state.waiting)
        };
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
        let waiting = {
            let mut state = unpoisoned(self.state.lock());
            state.complete = state.complete.max(seq);
            self.note_shown(&mut state, seq);
            // Who waits for a record of what was proven without one waits for its number now.
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(|sleeper| sleeper.wake());
        self.completer.wake();
    }

    /// Everything up to `seq` is over: the stream was waited for.
    pub(crate) fn prove(&self, seq: u64) {
        self.doubt.store(false, Ordering::SeqCst);
        self.complete(seq);
    }

    /// Whether the next job is over, or will never be, and has not been taken: what `open` says is what it waits for.
    /// `None` if there is none such.
    pub(crate) fn over<T>(&self, open: impl FnOnce(&Job) -> T) -> Option<T> {
        let state = unpoisoned(self.state.lock());
        state.jobs.front().filter(|job| state.is_over(job)).map(|job| open(job))
    }

    /// Asks the device how far the stream has come. Returns whether it has come further.
    pub(crate) fn query(&self) -> bool {
        let mut further = false;
        loop {
            let next = {
                let state = unpoisoned(self.state.lock());
                if state.lost.is_some() || self.is_in_doubt() {
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
                // Given back meanwhile: its number is published.
                Err(ep::Error::StaleEvent { .. }) => return further,
                Err(error) => {
                    self.fail_query(error);
                    return further;
                }
            }
        }
    }

    /// The device could not tell how far the stream is. Unless it is lost, the stream's context blocks until it knows.
    pub(crate) fn fail_query(&self, error: ep::Error) {
        if matches!(error, ep::Error::DeviceLost { .. }) {
            return self.lose(error);
        }
        log::warn!("{}: asking for an event failed ({error}); the stream is waited for", self.device.id());
        let state = unpoisoned(self.state.lock());
        if state.lost.is_none() {
            self.doubt.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the stream's context has to prove how far it is.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::SeqCst)
    }

    /// The oldest event that somebody waits for, if there is one to wait for.
    pub(crate) fn awaited(&self, passed: u64) -> Option<EventId> {
        let state = unpoisoned(self.state.lock());
        if self.wanted() <= passed {
            return None;
        }
        if state.lost.is_some() || self.is_in_doubt() {
            return None;
        }
        state.records.iter().find(|record| record.seq > state.complete).map(|record| record.event)
    }

    /// Takes the next job if it is over, or will never be because the device is lost, and is `ready` to be decided.
    pub(crate) fn take(&self, ready: impl Fn(&Job) -> bool) -> Option<Slot<Job>> {
        let mut state = unpoisoned(self.state.lock());
        let first = state.jobs.front()?;
        if state.is_over(first) && ready(first) { state.jobs.pop_front() } else { None }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use streamvm_ep::{CpuConfig, CpuDevice};

    use super::*;

    fn flight() -> Flight {
        Flight::new(Arc::new(CpuDevice::new(0, CpuConfig::default())), Arc::new(Sleeper::new()))
    }

    #[test]
    fn who_waits_for_a_record_hears_of_a_proof_without_one() {
        let (flight, sleeper) = (flight(), Arc::new(Sleeper::new()));
        sleeper.prepare();
        assert_eq!(flight.when_shown(1, &sleeper), Shown::NotYet);
        flight.prove(1);
        assert!(!sleeper.is_sleeping(), "it sleeps on");
    }

    #[test]
    fn who_comes_when_the_event_is_given_back_waits_for_the_number() {
        let (flight, sleeper) = (flight(), Arc::new(Sleeper::new()));
        flight.note_record(1, Ok(flight.device.events().acquire()));
        assert!(matches!(flight.shown(1), Shown::By(_)));
        flight.complete(1);
        flight.release_events(1);
        assert_eq!(flight.when_shown(1, &sleeper), Shown::ByNumber);
        assert_eq!(flight.when_shown(2, &sleeper), Shown::NotYet);
    }

    #[test]
    fn a_demand_for_less_is_not_hidden_by_one_for_more() {
        let flight = flight();
        flight.launched.store(3, Ordering::SeqCst);
        assert!(!flight.demand(5), "it is not launched");
        assert!(flight.demand(2));
        flight.note_record(3, Ok(flight.device.events().acquire()));
        assert!(!flight.needs_record());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;
    use streamvm_ep::{CpuConfig, CpuDevice};
    use streamvm_stream::{Point, StreamId};

    use super::*;

    /// A context that launches 1 and sleeps while nobody wants to know, and somebody who does. `again`: it looks once
    /// more after it has announced that it sleeps.
    fn waits_for_a_record(again: bool) {
        loom::model(move || {
            let sleeper = Arc::new(Sleeper::new());
            let device = Arc::new(CpuDevice::new(0, CpuConfig::default()));
            let flight = Arc::new(Flight::new(device, Arc::new(Sleeper::new())));
            let (theirs, bed) = (flight.clone(), sleeper.clone());
            let context = thread::spawn(move || {
                bed.belongs_here();
                let mut job = Slot::new(Job::empty());
                job.point = Point::new(StreamId(0), 1);
                theirs.add(job);
                while !theirs.needs_attention() {
                    bed.prepare();
                    if again && theirs.surely_needs_attention() { bed.cancel() } else { bed.sleep() }
                }
                theirs.note_record(1, Ok(theirs.device.events().acquire()));
            });
            if flight.demand(1) {
                sleeper.wake();
            }
            context.join().expect("the context records");
            assert!(matches!(flight.shown(1), Shown::By(_)));
        });
    }

    #[test]
    fn loom_a_demand_is_met_by_a_record() {
        waits_for_a_record(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_without_the_second_look_a_demand_is_missed() {
        waits_for_a_record(false);
    }

    /// A context with a head that waits for a record, and a source that is proven to be over without one. `registers`: it
    /// leaves word under the lock that it sleeps.
    fn waits_for_a_proof(registers: bool) {
        loom::model(move || {
            let sleeper = Arc::new(Sleeper::new());
            let device = Arc::new(CpuDevice::new(0, CpuConfig::default()));
            let flight = Arc::new(Flight::new(device, Arc::new(Sleeper::new())));
            let (theirs, bed) = (flight.clone(), sleeper.clone());
            let context = thread::spawn(move || {
                bed.belongs_here();
                loop {
                    bed.prepare();
                    let shown = if registers { theirs.when_shown(1, &bed) } else { theirs.shown(1) };
                    if shown != Shown::NotYet {
                        return bed.cancel();
                    }
                    bed.sleep();
                }
            });
            flight.prove(1);
            context.join().expect("the context goes on");
        });
    }

    #[test]
    fn loom_a_proof_reaches_who_waits_for_a_record() {
        waits_for_a_proof(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_proof_is_missed_by_who_leaves_no_word() {
        waits_for_a_proof(false);
    }
}

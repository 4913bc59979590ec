//! The list in flight of one stream whose device runs its commands later: tasks that were launched and have not passed.
//!
//! The context that launches the stream adds tasks and records. The completion (`completion.rs`) takes a task out once an event
//! after it has passed. A record of an event *covers* all numbers up to its own. An event stays in the pool from its record until
//! its number is published, so a wait by event finds the event, or finds that the number has passed.
//!
//! No waiter is missed:
//! * A waiter registers its number under the lock (`demand`), then wakes the completion, and the context if that has to record.
//! * A context or the completion that is about to park announces that first, and then checks once more under the lock. If it
//!   checked before the demand was there, the waker sees the announcement. Launches and records are handled alike.
//! * Reads without the lock are hints. `loom_tests` has the model, and a variant that must fail.
//!
//! Without a waiter there is no polling: no event is recorded that soft sync did not ask for, and the completion stays parked. A stream
//! that waits for the condition of a block ([`ConditionWait`]) is a waiter itself.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use streamvm_ep::{self as ep, Device, EventId, Operation};
use streamvm_stream::Point;

use crate::progress::condition_wait::{ConditionWait, Stage};
use crate::queue::node::NodeBox;
use crate::sync::panics::guarded;
use crate::sync::parker::Parker;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, unpoisoned};
use crate::tasks::task::Task;

/// The value of `next` while no waiter needs a record.
const NOBODY: u64 = u64::MAX;

/// What is in flight on one stream. `state` is behind a lock. The atomics are written under that lock, except that
/// [`InFlight::prove`] clears `doubt` without it; reads without the lock are hints.
pub(crate) struct InFlight {
    pub(crate) device: Arc<dyn Device>,
    state: Mutex<State>,
    /// The highest number that a waiter has asked for.
    demand: AtomicU64,
    /// The lowest number that a waiter has asked for and that no record covers yet, or `NOBODY`. Not the highest: that one may be
    /// launched only after the waiter for a lower number goes on.
    next: AtomicU64,
    /// The highest number launched. Written by the stream's context, under the lock.
    launched: AtomicU64,
    /// The highest number that a record covers, or that is known to be over.
    recorded: AtomicU64,
    /// A query of the device failed: the stream's context has to wait for the stream to find out how far it is.
    doubt: AtomicBool,
    /// The condition that the stream waits for is known: the stream's context can go on.
    condition_known: AtomicBool,
    /// Whether `state` has operations.
    has_operations: AtomicBool,
    /// Commands up to this number may go on for ever: what their tasks hold is never dropped.
    running_on: AtomicU64,
    /// The completion's parker, to wake when a number that was asked for can be waited for.
    completer: Arc<Parker>,
}

#[derive(Default)]
struct State {
    /// Tasks that were launched, failed or skipped, and have not passed, in order.
    tasks: VecDeque<NodeBox<Task>>,
    /// Records that were made and have not passed, in order.
    records: VecDeque<Record>,
    /// Numbers whose record failed, ascending: a waiter that needs one waits for the timeline.
    failed_records: VecDeque<u64>,
    /// All numbers up to this one are known to be over.
    complete: u64,
    /// Numbers that a waiter has asked for and that no record covers yet.
    unshown: BTreeSet<u64>,
    /// Parkers of contexts whose head waits for a record or a proof.
    waiting: Vec<Arc<Parker>>,
    /// The condition that the stream waits for. The instruction of the block is in the stream's context, and not among `tasks`.
    condition: Option<ConditionWait>,
    /// Operations that have queued their commands, and that the completion has not taken to look at them.
    operations: Vec<(Point, Box<dyn Operation>)>,
    lost: Option<ep::Error>,
}

impl State {
    /// Whether a task is over, or never will be because the device is lost.
    fn is_over(&self, task: &Task) -> bool {
        task.point.seq <= self.complete || self.lost.is_some()
    }

    /// The oldest record that is not known to have passed.
    fn open_record(&self) -> Option<Record> {
        self.records.iter().find(|record| record.seq > self.complete).copied()
    }
}

#[derive(Copy, Clone)]
struct Record {
    seq: u64,
    event: EventId,
}

/// How a device can wait for a point.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum RecordState {
    /// By this event.
    By(EventId),
    /// Not yet: its record is not made.
    NotYet,
    /// By the timeline only: its record failed, or it is over.
    ByNumber,
}

impl InFlight {
    pub(crate) fn new(device: Arc<dyn Device>, completer: Arc<Parker>) -> InFlight {
        let (demand, launched, recorded) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let [doubt, condition_known, has_operations] = [(); 3].map(|()| AtomicBool::new(false));
        let (next, running_on) = (AtomicU64::new(NOBODY), AtomicU64::new(0));
        let state = Mutex::default();
        InFlight {
            device,
            state,
            demand,
            next,
            launched,
            recorded,
            doubt,
            condition_known,
            has_operations,
            running_on,
            completer,
        }
    }

    /// Keeps an operation for the completion, which looks at it until its instruction has passed. That is added after this.
    pub(crate) fn watch(&self, point: Point, operation: Box<dyn Operation>) {
        let mut state = unpoisoned(self.state.lock());
        state.operations.push((point, operation));
        self.has_operations.store(true, Ordering::SeqCst);
    }

    /// Whether there are operations that the completion has not taken.
    pub(crate) fn is_watched(&self) -> bool {
        self.has_operations.load(Ordering::SeqCst)
    }

    /// Takes the operations that were added since the last call.
    pub(crate) fn take_operations(&self) -> Vec<(Point, Box<dyn Operation>)> {
        let mut state = unpoisoned(self.state.lock());
        self.has_operations.store(false, Ordering::SeqCst);
        std::mem::take(&mut state.operations)
    }

    /// A waiter asks when `seq` has passed. Wakes the completion. Returns whether the caller must wake the stream's context, which
    /// has to record.
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

    /// The highest number that a waiter has asked for.
    pub(crate) fn wanted(&self) -> u64 {
        self.demand.load(Ordering::SeqCst)
    }

    /// Whether a number that a waiter has asked for is launched, and no record covers it.
    pub(crate) fn needs_record(&self) -> bool {
        let next = self.next.load(Ordering::SeqCst);
        next > self.recorded.load(Ordering::SeqCst) && next <= self.launched.load(Ordering::SeqCst)
    }

    /// Notes that everything up to `seq` is covered, or needs no record.
    fn note_shown(&self, state: &mut State, seq: u64) {
        let shown = self.recorded.fetch_max(seq, Ordering::SeqCst).max(seq);
        while state.unshown.first().is_some_and(|first| *first <= shown) {
            state.unshown.pop_first();
        }
        self.next.store(state.unshown.first().copied().unwrap_or(NOBODY), Ordering::SeqCst);
    }

    /// Whether the stream's context has to record or to prove something for a waiter.
    pub(crate) fn needs_attention(&self) -> bool {
        self.needs_record() || self.is_in_doubt()
    }

    /// Whether the stream's context has something to do beside the tasks of its queue.
    pub(crate) fn calls_context(&self) -> bool {
        self.needs_attention() || self.condition_known.load(Ordering::SeqCst)
    }

    /// [`InFlight::calls_context`] under the lock, for a context that is about to park: a later demand or condition wakes it.
    pub(crate) fn surely_calls_context(&self) -> bool {
        let _state = unpoisoned(self.state.lock());
        self.calls_context()
    }

    /// The highest number launched.
    pub(crate) fn launched(&self) -> u64 {
        self.launched.load(Ordering::SeqCst)
    }

    /// Adds a task that was launched, or that failed or was skipped and passes in its turn.
    pub(crate) fn add(&self, task: NodeBox<Task>) {
        let seq = task.point.seq;
        let lost = {
            let mut state = unpoisoned(self.state.lock());
            state.tasks.push_back(task);
            self.launched.store(seq, Ordering::SeqCst);
            state.lost.is_some()
        };
        // A lost device records nothing that could wake the completion.
        if lost {
            self.completer.wake();
        }
    }

    /// Notes that `event` was recorded after `seq`, or that the record failed. Wakes the contexts that wait for it, and the
    /// completion.
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
        waiting.iter().for_each(|parker| parker.wake());
        self.completer.wake();
    }

    /// How a device can wait for `seq`, which has not passed.
    pub(crate) fn record_of(&self, seq: u64) -> RecordState {
        let state = unpoisoned(self.state.lock());
        Self::find(&state, seq)
    }

    fn find(state: &State, seq: u64) -> RecordState {
        let next = state.records.partition_point(|record| record.seq < seq);
        match state.records.get(next) {
            Some(record) => RecordState::By(record.event),
            // Its event may have been given back already.
            None if seq <= state.complete => RecordState::ByNumber,
            None if state.lost.is_some() || state.failed_records.back().is_some_and(|failed| *failed >= seq) => {
                RecordState::ByNumber
            }
            None => RecordState::NotYet,
        }
    }

    /// As [`InFlight::record_of`]. If no record covers `seq` yet, `parker` is woken at the next record or proof.
    pub(crate) fn when_recorded(&self, seq: u64, parker: &Arc<Parker>) -> RecordState {
        let mut state = unpoisoned(self.state.lock());
        let found = Self::find(&state, seq);
        if found == RecordState::NotYet && !state.waiting.iter().any(|other| Arc::ptr_eq(other, parker)) {
            state.waiting.push(parker.clone());
        }
        found
    }

    /// The device is lost: the tasks in flight fail.
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
            // Nothing will be recorded or proven any more.
            self.note_shown(&mut state, u64::MAX);
            self.doubt.store(false, Ordering::SeqCst);
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(|parker| parker.wake());
        self.completer.wake();
    }

    /// [`lose`](InFlight::lose), because commands go on for ever.
    pub(crate) fn lose_for_ever(&self, error: ep::Error) {
        // The next one may be on its way.
        self.running_on.fetch_max(self.launched() + 1, Ordering::SeqCst);
        self.lose(error);
    }

    /// Whether the commands of a task that is over may go on for ever.
    pub(crate) fn runs_on(&self, seq: u64) -> bool {
        seq <= self.running_on.load(Ordering::SeqCst) && seq > unpoisoned(self.state.lock()).complete
    }

    /// The loss of the device, if the device was lost before `seq` was over.
    pub(crate) fn lost_before(&self, seq: u64) -> Option<ep::Error> {
        let state = unpoisoned(self.state.lock());
        if seq > state.complete { state.lost.clone() } else { None }
    }

    /// The loss of the device, if it was lost.
    pub(crate) fn lost(&self) -> Option<ep::Error> {
        unpoisoned(self.state.lock()).lost.clone()
    }

    /// Notes that everything up to `seq` is over, as the caller has observed.
    pub(crate) fn complete(&self, seq: u64) {
        let waiting = {
            let mut state = unpoisoned(self.state.lock());
            state.complete = state.complete.max(seq);
            self.note_shown(&mut state, seq);
            // Contexts that wait for a record of a number that was proven without one now wait for the number.
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(|parker| parker.wake());
        self.completer.wake();
    }

    /// Notes that everything up to `seq` is over, because the stream was waited for; so is the copy of a condition.
    pub(crate) fn prove(&self, seq: u64) {
        self.doubt.store(false, Ordering::SeqCst);
        unpoisoned(self.state.lock()).condition.iter_mut().for_each(ConditionWait::prove);
        self.complete(seq);
    }

    /// The stream waits for a condition from now on. Everything launched comes before the condition's event on the device.
    pub(crate) fn begin_condition(&self, wait: ConditionWait) {
        unpoisoned(self.state.lock()).condition = Some(wait);
        self.completer.wake();
    }

    /// The instruction whose condition was copied, or never will be because the device is lost. The completion decides whether it goes on.
    pub(crate) fn copied_condition(&self) -> Option<Point> {
        let state = unpoisoned(self.state.lock());
        state.condition.as_ref().filter(|wait| wait.can_be_decided(state.lost.is_some())).map(|wait| wait.noted.point)
    }

    /// The stream's context may go on with the instruction that waits for a condition. The caller wakes it.
    pub(crate) fn decide_condition(&self, failed: bool) {
        let mut state = unpoisoned(self.state.lock());
        let failed = failed || state.lost.is_some();
        if let Some(wait) = &mut state.condition {
            wait.stage = Stage::Known { failed };
            self.condition_known.store(true, Ordering::SeqCst);
        }
    }

    /// Ends the wait for a condition, if it is known. Returns whether the instruction has failed.
    pub(crate) fn take_condition(&self) -> Option<bool> {
        if !self.condition_known.load(Ordering::SeqCst) {
            return None;
        }
        let mut state = unpoisoned(self.state.lock());
        let ConditionWait { event, stage, .. } =
            state.condition.take_if(|wait| matches!(wait.stage, Stage::Known { .. }))?;
        self.condition_known.store(false, Ordering::SeqCst);
        drop(state);
        if let Some(Err(error)) = event.map(|event| self.device.events().release(event)) {
            log::error!("an event was given back twice: {error}");
        }
        Some(stage == Stage::Known { failed: true })
    }

    /// Applies `f` to the wait for a condition; for reports.
    pub(crate) fn with_condition<T>(&self, f: impl FnOnce(&ConditionWait) -> T) -> Option<T> {
        unpoisoned(self.state.lock()).condition.as_ref().map(f)
    }

    /// Applies `open` to the next task, if it is over or never will be; else `None`. `open` returns what the task still waits for.
    pub(crate) fn if_first_is_over<T>(&self, open: impl FnOnce(&Task) -> T) -> Option<T> {
        let state = unpoisoned(self.state.lock());
        state.tasks.front().filter(|task| state.is_over(task)).map(|task| open(task))
    }

    /// Asks the device how far the stream has come. Returns whether it has come further.
    pub(crate) fn query(&self) -> bool {
        let mut further = false;
        loop {
            let next = {
                let mut state = unpoisoned(self.state.lock());
                if state.lost.is_some() || self.is_in_doubt() {
                    return further;
                }
                match state.open_record() {
                    Some(Record { seq, event }) => Some((Some(seq), event)),
                    None => {
                        let Some(wait) = &mut state.condition else { return further };
                        if wait.see_proof() {
                            return true;
                        }
                        wait.open_event().map(|event| (None, event))
                    }
                }
            };
            let Some((seq, event)) = next else {
                return further;
            };
            match guarded(|| self.device.query(event)) {
                Ok(true) => {
                    if seq.is_none() {
                        unpoisoned(self.state.lock()).condition.iter_mut().for_each(ConditionWait::see_event);
                    }
                    // Everything that was launched comes before the event of a condition.
                    self.complete(seq.unwrap_or_else(|| self.launched()));
                    further = true;
                }
                Ok(false) => return further,
                // The event was given back meanwhile, so its number is published.
                Err(ep::Error::StaleEvent { .. }) => return further,
                Err(error) => {
                    self.fail_query(error);
                    return further;
                }
            }
        }
    }

    /// Handles a failed query. A lost device fails what is in flight; otherwise the stream's context blocks until it knows how far
    /// the stream is.
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

    /// Whether the stream's context has to find out how far the stream is.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::SeqCst)
    }

    /// The oldest event to wait for, if a waiter has asked for a number beyond `passed`, or the stream waits for a condition.
    pub(crate) fn awaited(&self, passed: u64) -> Option<EventId> {
        let state = unpoisoned(self.state.lock());
        let condition = state.condition.as_ref().and_then(ConditionWait::open_event);
        if self.wanted() <= passed && condition.is_none() {
            return None;
        }
        if state.lost.is_some() || self.is_in_doubt() {
            return None;
        }
        state.open_record().map(|record| record.event).or(condition)
    }

    /// Whether a poll would find out something about the condition that the stream waits for, without a look at an event.
    pub(crate) fn has_undecided_condition(&self) -> bool {
        let state = unpoisoned(self.state.lock());
        state.condition.as_ref().is_some_and(|wait| wait.is_copied() || wait.can_be_decided(state.lost.is_some()))
    }

    /// Takes the next task if it is over, or never will be because the device is lost, and if `ready` agrees.
    pub(crate) fn take(&self, ready: impl Fn(&Task) -> bool) -> Option<NodeBox<Task>> {
        let mut state = unpoisoned(self.state.lock());
        let first = state.tasks.front()?;
        if state.is_over(first) && ready(first) { state.tasks.pop_front() } else { None }
    }

    /// Applies `f` to the first task in flight; for reports.
    pub(crate) fn with_first<T>(&self, f: impl FnOnce(&Task) -> T) -> Option<T> {
        unpoisoned(self.state.lock()).tasks.front().map(|task| f(task))
    }

    /// Gives back the events that cover nothing beyond `passed`. That number is published, so no wait needs them.
    pub(crate) fn release_events(&self, passed: u64) {
        let mut state = unpoisoned(self.state.lock());
        let mut refused = None;
        while state.records.front().is_some_and(|record| record.seq <= passed) {
            if let Some(record) = state.records.pop_front()
                && let Err(error) = self.device.events().release(record.event)
            {
                refused = Some(error);
            }
        }
        while state.failed_records.front().is_some_and(|failed| *failed <= passed) {
            state.failed_records.pop_front();
        }
        drop(state);
        if let Some(error) = refused {
            log::error!("an event was given back twice: {error}");
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "in_flight_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;
    use streamvm_cpu::{CpuConfig, CpuDevice};
    use streamvm_ep::{ProgramStep, Site};
    use streamvm_stream::StreamId;

    use super::*;

    /// A context launches 1 and parks while no waiter asks, and a waiter asks. `again`: the context checks once more after it has
    /// announced that it parks.
    fn waits_for_a_record(again: bool) {
        loom::model(move || {
            let parker = Arc::new(Parker::new());
            let device = Arc::new(CpuDevice::new(0, CpuConfig::default()));
            let in_flight = Arc::new(InFlight::new(device, Arc::new(Parker::new())));
            let (theirs, own) = (in_flight.clone(), parker.clone());
            let context = thread::spawn(move || {
                own.belongs_here();
                let mut task = NodeBox::new(Task::empty());
                task.point = Point::new(StreamId(0), 1);
                theirs.add(task);
                while !theirs.calls_context() {
                    own.prepare_park();
                    if again && theirs.surely_calls_context() { own.cancel_park() } else { own.sleep() }
                }
                theirs.note_record(1, Ok(theirs.device.events().acquire()));
            });
            if in_flight.demand(1) {
                parker.wake();
            }
            context.join().expect("the context records");
            assert!(matches!(in_flight.record_of(1), RecordState::By(_)));
        });
    }

    #[test]
    fn loom_a_demand_is_met_by_a_record() {
        waits_for_a_record(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_without_the_second_check_a_demand_is_missed() {
        waits_for_a_record(false);
    }

    /// A context whose head waits for a record, and a source that is proven to be over without one. `registers`: the context
    /// registers its parker under the lock.
    fn waits_for_a_proof(registers: bool) {
        loom::model(move || {
            let parker = Arc::new(Parker::new());
            let device = Arc::new(CpuDevice::new(0, CpuConfig::default()));
            let in_flight = Arc::new(InFlight::new(device, Arc::new(Parker::new())));
            let (theirs, own) = (in_flight.clone(), parker.clone());
            let context = thread::spawn(move || {
                own.belongs_here();
                loop {
                    own.prepare_park();
                    let shown = if registers { theirs.when_recorded(1, &parker) } else { theirs.record_of(1) };
                    if shown != RecordState::NotYet {
                        return own.cancel_park();
                    }
                    own.sleep();
                }
            });
            in_flight.prove(1);
            context.join().expect("the context goes on");
        });
    }

    #[test]
    fn loom_a_proof_wakes_the_waiter_for_a_record() {
        waits_for_a_proof(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_a_waiter_that_does_not_register_misses_the_proof() {
        waits_for_a_proof(false);
    }

    /// A wait for a condition whose copy is over.
    fn copied() -> ConditionWait {
        let step = ProgramStep { number: 0, name: "while", site: Site::caller() };
        ConditionWait { stage: Stage::Seen, ..ConditionWait::new(&Task::empty(), step, None) }
    }

    /// A context whose stream waits for a condition parks, and the completion decides. `again`: the context checks once more after it has
    /// announced that it parks.
    fn waits_for_a_condition(again: bool) {
        loom::model(move || {
            let parker = Arc::new(Parker::new());
            let device = Arc::new(CpuDevice::new(0, CpuConfig::default()));
            let in_flight = Arc::new(InFlight::new(device, Arc::new(Parker::new())));
            in_flight.begin_condition(copied());
            let (theirs, own) = (in_flight.clone(), parker.clone());
            let context = thread::spawn(move || {
                own.belongs_here();
                while theirs.take_condition().is_none() {
                    own.prepare_park();
                    if again && theirs.surely_calls_context() { own.cancel_park() } else { own.sleep() }
                }
            });
            in_flight.decide_condition(false);
            parker.wake();
            context.join().expect("the context goes on");
        });
    }

    #[test]
    fn loom_a_decided_condition_wakes_the_context() {
        waits_for_a_condition(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_without_the_second_check_a_decided_condition_is_missed() {
        waits_for_a_condition(false);
    }

    /// The completion parks, and a stream begins to wait for a condition. `again`: as above, for the completion.
    fn asks_the_completion(again: bool) {
        loom::model(move || {
            let completer = Arc::new(Parker::new());
            let device = Arc::new(CpuDevice::new(0, CpuConfig::default()));
            let in_flight = Arc::new(InFlight::new(device, completer.clone()));
            let theirs = in_flight.clone();
            let completion = thread::spawn(move || {
                completer.belongs_here();
                while theirs.copied_condition().is_none() {
                    completer.prepare_park();
                    if again && theirs.has_undecided_condition() { completer.cancel_park() } else { completer.sleep() }
                }
            });
            in_flight.begin_condition(copied());
            completion.join().expect("the completion decides");
        });
    }

    #[test]
    fn loom_a_stream_that_waits_for_a_condition_wakes_the_completion() {
        asks_the_completion(true);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn loom_without_the_second_check_a_wait_for_a_condition_is_missed() {
        asks_the_completion(false);
    }
}

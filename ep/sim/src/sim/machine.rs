//! The simulated machine, which has the simulated devices: queues, events, memory and failures, and the loop that runs commands.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use streamvm_ep::Accounts;
use streamvm_ep::{Device, DeviceId, Error, EventId, EventPool, LateFailure, OpStates};

use crate::races::{Detector, Moment};
use crate::sim::device::SimDevice;
use crate::sim::memory::Heap;
use crate::sim::queue::{Command, QueuePosition, Queues, TakenCommand};
use crate::sim::run::{Runner, catch_panic};

/// The configuration of the simulated devices of one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The number of devices: `sim:0` to `sim:<devices - 1>`.
    pub devices: u32,
    /// The seed of the execution order.
    pub seed: u64,
    /// The most bytes that may be allocated from each device, over all memory kinds; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Whether a copy of pageable memory is a finding.
    pub strict_pinned: bool,
}

impl Default for SimConfig {
    /// One device without a memory limit, seed 0, pageable copies allowed.
    fn default() -> SimConfig {
        SimConfig { devices: 1, seed: 0, memory_limit: None, strict_pinned: false }
    }
}

/// The simulated devices of one engine, with one pool of events and one random source; see the [module](crate::sim).
///
/// Thread-safe. Commands run in the threads that call [`SimMachine::step`], [`Device::wait`] or
/// [`Stream::synchronize`](streamvm_ep::Stream::synchronize). Commands that are still queued when the machine is dropped do not run; their
/// captures are dropped.
pub struct SimMachine {
    pub(super) config: SimConfig,
    pub(super) detector: Arc<Detector>,
    pub(super) events: EventPool,
    pub(super) heap: Heap,
    /// One per device.
    pub(super) accounts: Vec<Accounts>,
    /// The states of registered ops, one set per device.
    states: Vec<OpStates>,
    runner: Runner,
    state: Mutex<State>,
    /// Notified whenever a command has run.
    passed: Condvar,
}

#[derive(Debug)]
struct State {
    queues: Queues,
    /// The last record of each event, by slot.
    records: Vec<Option<EventRecord>>,
    /// One list per device.
    failures: Vec<Vec<LateFailure>>,
}

/// The last record of an event.
#[derive(Clone, Debug)]
pub(super) struct EventRecord {
    generation: u32,
    pub(super) place: QueuePosition,
    pub(super) moment: Moment,
}

impl SimMachine {
    /// A machine with empty queues. It reports everything to `detector`; other devices of the engine may report to the same one.
    pub fn new(config: SimConfig, detector: Arc<Detector>) -> Arc<SimMachine> {
        let accounts = |index| Accounts::new(DeviceId::sim(index), config.memory_limit);
        Arc::new(SimMachine {
            accounts: (0..config.devices).map(accounts).collect(),
            states: (0..config.devices).map(|index| OpStates::new(DeviceId::sim(index))).collect(),
            detector,
            events: EventPool::new(),
            heap: Heap::default(),
            runner: Runner::default(),
            state: Mutex::new(State {
                queues: Queues::new(config.seed),
                records: Vec::new(),
                failures: vec![Vec::new(); config.devices as usize],
            }),
            passed: Condvar::new(),
            config,
        })
    }

    /// The devices, in order. Each call gives new handles to the same ones.
    pub fn devices(self: &Arc<Self>) -> Vec<Arc<dyn Device>> {
        let device = |index| -> Arc<dyn Device> { Arc::new(SimDevice::new(index, Arc::clone(self))) };
        (0..self.config.devices).map(device).collect()
    }

    /// Runs one command that can run, chosen by the seed; returns `false` if there is none.
    pub fn step(&self) -> bool {
        let taken = self.lock().queues.take(None);
        taken.map(|taken| self.run(taken)).is_some()
    }

    /// The number of commands that are queued or running.
    pub fn pending(&self) -> usize {
        self.lock().queues.pending()
    }

    /// The detector to which the machine reports.
    pub fn detector(&self) -> &Arc<Detector> {
        &self.detector
    }

    /// Runs the commands that `place` needs, until it has passed or the deadline is reached; returns `false` at the deadline. Commands
    /// that other threads are running are waited for.
    pub(super) fn run_until(&self, place: QueuePosition, deadline: Option<Instant>) -> bool {
        let mut state = self.lock();
        // Computed once: the set of commands before a place never grows.
        let needed = state.queues.needed(place);
        loop {
            if state.queues.has_passed(place) {
                return true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            if let Some(taken) = state.queues.take(Some(&needed)) {
                drop(state);
                self.run(taken);
                state = self.lock();
                continue;
            }
            state = match left {
                Some(left) => {
                    self.passed.wait_timeout(state, left).map_or_else(|e| e.into_inner().0, |(state, _)| state)
                }
                None => self.passed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// A new stream of the device with this index.
    pub(super) fn open(&self, device: u32) -> u64 {
        self.lock().queues.open(device as usize)
    }

    /// Marks that the handle of a stream has been dropped.
    pub(super) fn close(&self, stream: u64) {
        self.lock().queues.close(stream);
    }

    /// Queues a command.
    pub(super) fn push(&self, stream: u64, command: Command) {
        self.lock().queues.push(stream, command);
    }

    /// Queues a record of `event` and stores `moment` as the clock at the record.
    pub(super) fn push_record(
        &self,
        stream: u64,
        command: Command,
        event: EventId,
        moment: Moment,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        self.events.record(event)?;
        state.queues.push(stream, command);
        let record = EventRecord { generation: event.generation, place: state.queues.end(stream), moment };
        let slot = event.index as usize;
        if state.records.len() <= slot {
            state.records.resize(slot + 1, None);
        }
        state.records[slot] = Some(record);
        Ok(())
    }

    /// The last record of `event`, if there is one.
    pub(super) fn record(&self, event: EventId) -> Result<Option<EventRecord>, Error> {
        let state = self.lock();
        if !self.events.is_recorded(event)? {
            return Ok(None);
        }
        let record = state.records.get(event.index as usize).and_then(Option::as_ref);
        Ok(record.filter(|record| record.generation == event.generation).cloned())
    }

    pub(super) fn has_passed(&self, place: QueuePosition) -> bool {
        self.lock().queues.has_passed(place)
    }

    /// The place after every command of `stream` so far.
    pub(super) fn end(&self, stream: u64) -> QueuePosition {
        self.lock().queues.end(stream)
    }

    pub(super) fn take_failures(&self, device: u32) -> Vec<LateFailure> {
        std::mem::take(&mut self.lock().failures[device as usize])
    }

    /// Runs a command that was taken from its queue, without holding a lock, and then marks its place as passed.
    fn run(&self, taken: TakenCommand) {
        let TakenCommand { stream, device, command } = taken;
        let (place, seq, step) = (command.label.stream, command.label.seq, command.label.step);
        let failed = self.runner.run(command, &self.detector, &self.heap, &self.states[device]);
        let mut state = self.lock();
        let device = state.queues.pass(stream);
        // Under the same lock: no thread sees the place as passed before the failure is listed.
        if let (Some(device), Some(cause)) = (device, failed) {
            state.failures[device].push(LateFailure { stream: place, seq, step, cause });
        }
        drop(state);
        self.passed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SimMachine {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for command in state.queues.drain() {
            // Captures are the caller's code: a drop that panics must not keep the others from being dropped.
            let _ = catch_panic(|| drop(command));
        }
    }
}

impl fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("SimMachine");
        text.field("config", &self.config).field("pending", &self.pending()).finish_non_exhaustive()
    }
}

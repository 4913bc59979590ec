//! The plan: rules, the faults that were injected, and the lost devices.
//!
//! Invariants:
//! * [`State`] is only accessed under its lock. No device, gate or caller's code is called under that lock, because a waiter at a gate
//!   asks the plan under the gate's lock.
//! * A lost device stays lost.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use streamvm_ep::{Device, DeviceId, EventId, Label, LateFailure, Stream};

use crate::faults::gate::Gate;
use crate::faults::lost::StreamToDrain;
use crate::faults::rule::{CallSite, Fault, Frequency, Point, Rule, RuleError};

/// A stream behind a faulty one. The lock is held during each of its calls.
pub(super) type Inner = Mutex<Box<dyn Stream>>;

/// A fault that has been injected.
#[derive(Clone, Debug, PartialEq)]
pub struct Fired {
    /// The kind of call.
    pub point: Point,
    /// The [name](Fault::name) of the fault.
    pub fault: &'static str,
    /// The device.
    pub device: DeviceId,
    /// The instruction of the call, if a label had been set.
    pub label: Option<Label>,
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} on {}", self.fault, self.point, self.device)?;
        match &self.label {
            Some(label) => write!(f, " of {label}"),
            None => Ok(()),
        }
    }
}

/// The faults to inject, and where. Shared by any number of [`FaultyDevice`](crate::faults::FaultyDevice)s; rules may be added while they
/// are in use. Thread-safe.
pub struct FaultPlan {
    seed: u64,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    rules: Vec<(Rule, u64)>,
    stopped: bool,
    fired: Vec<Fired>,
    pub(super) lost: HashMap<DeviceId, String>,
    /// Lost devices whose streams have not been run to completion yet.
    pub(super) undrained: HashSet<DeviceId>,
    /// Streams to be run to completion when their device is lost.
    pub(super) streams: HashMap<DeviceId, Vec<StreamToDrain>>,
    /// The events after all commands that lost devices had queued.
    pub(super) ends: HashMap<DeviceId, Vec<EventId>>,
    /// Threads inside a function that a wrapped stream runs, with the nesting depth.
    pub(super) inside: HashMap<ThreadId, usize>,
    late: HashMap<DeviceId, Vec<LateFailure>>,
    /// Records after a held command, by pool and event.
    held: HashMap<(usize, EventId), Vec<Gate>>,
    /// Every gate with possible waiters, to wake them when a device is lost.
    pub(super) holding: Vec<Gate>,
}

impl FaultPlan {
    /// A plan without rules, with the seed 0.
    pub fn new() -> Arc<FaultPlan> {
        FaultPlan::with_seed(0)
    }

    /// A plan without rules. The seed is for rules with a [chance](Rule::chance).
    pub fn with_seed(seed: u64) -> Arc<FaultPlan> {
        Arc::new(FaultPlan { seed, state: Mutex::default() })
    }

    /// Adds a rule. If several rules fire at one call, the one that was added first is used; the others have counted the call.
    ///
    /// # Errors
    ///
    /// A [`RuleError`] for a rule that can never have its effect.
    pub fn add(&self, rule: Rule) -> Result<(), RuleError> {
        rule.check()?;
        self.lock().rules.push((rule, 0));
        Ok(())
    }

    /// Stops injecting faults, and opens every gate that a rule names. From then on everything works, except on lost devices.
    pub fn stop(&self) {
        let gates: Vec<Gate> = {
            let mut state = self.lock();
            state.stopped = true;
            let gates = state.rules.iter().filter_map(|(rule, _)| gate_of(&rule.fault)).cloned();
            gates.chain(state.holding.iter().cloned()).collect()
        };
        gates.iter().for_each(Gate::open);
    }

    /// The faults that were injected, in order.
    pub fn fired(&self) -> Vec<Fired> {
        self.lock().fired.clone()
    }

    /// Whether this device has been lost.
    pub fn is_lost(&self, device: DeviceId) -> bool {
        self.lock().lost.contains_key(&device)
    }

    /// Counts a call; returns the fault to inject.
    pub(super) fn at(&self, call: &CallSite<'_>) -> Option<Fault> {
        let mut state = self.lock();
        if state.stopped || state.lost.contains_key(&call.device) {
            return None;
        }
        let mut found = None;
        for (index, (rule, count)) in state.rules.iter_mut().enumerate() {
            if !rule.matches(call) {
                continue;
            }
            let number = *count;
            *count += 1;
            let fires = match rule.frequency {
                Frequency::Each => true,
                Frequency::Nth(n) => number == n,
                Frequency::From(n) => number >= n,
                Frequency::Every(n) => (number + 1) % n == 0,
                Frequency::Chance(chance) => self.draw(index as u64, number, call) < chance,
            };
            if fires && found.is_none() {
                found = Some(rule.fault.clone());
            }
        }
        if let Some(fault) = &found {
            let fired =
                Fired { point: call.point, fault: fault.name(), device: call.device, label: call.label.cloned() };
            state.fired.push(fired);
        }
        found
    }

    /// Adds a stream, to be run to completion if the device is lost.
    pub(super) fn add_stream(&self, device: &Arc<dyn Device>, stream: &Arc<Inner>) {
        let mut state = self.lock();
        let streams = state.streams.entry(device.id()).or_default();
        streams.retain(|known| !known.is_gone());
        streams.push(StreamToDrain::new(device, stream));
    }

    pub(super) fn add_late_failure(&self, device: DeviceId, failure: LateFailure) {
        self.lock().late.entry(device).or_default().push(failure);
    }

    pub(super) fn take_late_failures(&self, device: DeviceId) -> Vec<LateFailure> {
        self.lock().late.remove(&device).unwrap_or_default()
    }

    pub(super) fn add_holding(&self, gate: &Gate) {
        let mut state = self.lock();
        if !state.holding.iter().any(|known| known.is_same(gate)) {
            state.holding.push(gate.clone());
        }
    }

    /// Stores the gates that hold the commands before a record of an event.
    pub(super) fn set_holders(&self, pool: usize, event: EventId, gates: &[Gate]) {
        let mut state = self.lock();
        if gates.is_empty() {
            state.held.remove(&(pool, event));
        } else {
            state.held.insert((pool, event), gates.to_vec());
        }
    }

    /// The closed gates that hold an event.
    pub(super) fn holders(&self, pool: usize, event: EventId) -> Vec<Gate> {
        // Gates are checked without the plan's lock, because a waiter at a gate asks the plan under the gate's lock.
        let mut gates = self.lock().held.get(&(pool, event)).cloned().unwrap_or_default();
        gates.retain(|gate| !gate.is_open());
        gates
    }

    /// A number in 0..1 that depends only on the seed, the rule and the call.
    fn draw(&self, rule: u64, number: u64, call: &CallSite<'_>) -> f64 {
        let device = (call.device.kind.index() as u64) << 32 | u64::from(call.device.index);
        let place = match call.label {
            Some(label) => [u64::from(label.stream) + 1, label.seq, call.place],
            None => [0, 0, number],
        };
        let mut hash = self.seed;
        for part in [rule, call.point as u64, device].into_iter().chain(place) {
            hash = splitmix(hash ^ splitmix(part));
        }
        (hash >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("FaultPlan")
            .field("seed", &self.seed)
            .field("rules", &state.rules)
            .field("fired", &state.fired)
            .field("lost", &state.lost)
            .finish_non_exhaustive()
    }
}

fn gate_of(fault: &Fault) -> Option<&Gate> {
    match fault {
        Fault::Stall(gate) | Fault::Hold(gate) => Some(gate),
        _ => None,
    }
}

/// The output function of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators").
fn splitmix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

//! The plan: rules, what they have done, and which devices are lost.
//!
//! Invariants:
//! * [`State`] is only touched under its lock, and no device, gate or caller's code is called under it: who waits at a
//!   gate asks the plan under the gate's lock;
//! * a device that is lost stays so.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::device::{Device, DeviceId, LateFailure};
use crate::event::EventId;
use crate::faults::gate::Gate;
use crate::faults::lost::Driven;
use crate::faults::rule::{At, Fault, Often, Point, Rule, RuleError};
use crate::label::Label;
use crate::stream::Stream;

/// A stream behind a faulty one. The lock is held during each of its calls.
pub(super) type Inner = Mutex<Box<dyn Stream>>;

/// A fault that has been injected.
#[derive(Clone, Debug, PartialEq)]
pub struct Fired {
    /// At which call.
    pub point: Point,
    /// The [name](Fault::name) of the fault.
    pub fault: &'static str,
    /// On which device.
    pub device: DeviceId,
    /// The instruction that the call belonged to, if a stream had been told.
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

/// Which faults are injected where. Shared by any number of [`FaultyDevice`](crate::faults::FaultyDevice)s; rules may be
/// added while they are in use. Thread safe.
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
    /// Lost devices whose streams nobody has driven to their end yet.
    pub(super) undriven: HashSet<DeviceId>,
    /// Streams to be driven to their end when their device is lost.
    pub(super) streams: HashMap<DeviceId, Vec<Driven>>,
    /// Events behind all that lost devices had queued.
    pub(super) ends: HashMap<DeviceId, Vec<EventId>>,
    /// Threads inside of a function that a wrapped stream runs, and how deep.
    pub(super) inside: HashMap<ThreadId, usize>,
    late: HashMap<DeviceId, Vec<LateFailure>>,
    /// Records behind a held command, by pool and event.
    held: HashMap<(usize, EventId), Vec<Gate>>,
    /// Every gate that something may wait at, to wake it when a device is lost.
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

    /// Adds a rule. Where several fire at one call, the one that was added first does; the others have counted the call.
    ///
    /// # Errors
    ///
    /// A [`RuleError`] for a rule that could never do what it says.
    pub fn add(&self, rule: Rule) -> Result<(), RuleError> {
        rule.check()?;
        self.lock().rules.push((rule, 0));
        Ok(())
    }

    /// Injects nothing more, and opens every gate that a rule names: from here on everything that is not lost works.
    pub fn stop(&self) {
        let gates: Vec<Gate> = {
            let mut state = self.lock();
            state.stopped = true;
            let gates = state.rules.iter().filter_map(|(rule, _)| gate_of(&rule.fault)).cloned();
            gates.chain(state.holding.iter().cloned()).collect()
        };
        gates.iter().for_each(Gate::open);
    }

    /// What has been injected, in the order in which it was.
    pub fn fired(&self) -> Vec<Fired> {
        self.lock().fired.clone()
    }

    /// Has this device been lost?
    pub fn is_lost(&self, device: DeviceId) -> bool {
        self.lock().lost.contains_key(&device)
    }

    /// What to do at a call. Counts it.
    pub(super) fn at(&self, call: &At<'_>) -> Option<Fault> {
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
            let fires = match rule.often {
                Often::Each => true,
                Often::Nth(n) => number == n,
                Often::From(n) => number >= n,
                Often::Every(n) => (number + 1) % n == 0,
                Often::Chance(chance) => self.draw(index as u64, number, call) < chance,
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

    /// Notes a stream, which is driven to its end if the device is lost.
    pub(super) fn note_stream(&self, device: &Arc<dyn Device>, stream: &Arc<Inner>) {
        let mut state = self.lock();
        let streams = state.streams.entry(device.id()).or_default();
        streams.retain(|known| !known.is_gone());
        streams.push(Driven::new(device, stream));
    }

    pub(super) fn note_late(&self, device: DeviceId, failure: LateFailure) {
        self.lock().late.entry(device).or_default().push(failure);
    }

    pub(super) fn take_late(&self, device: DeviceId) -> Vec<LateFailure> {
        self.lock().late.remove(&device).unwrap_or_default()
    }

    pub(super) fn note_holding(&self, gate: &Gate) {
        let mut state = self.lock();
        if !state.holding.iter().any(|known| known.is(gate)) {
            state.holding.push(gate.clone());
        }
    }

    /// An event has been recorded behind commands that these gates hold.
    pub(super) fn note_record(&self, pool: usize, event: EventId, gates: &[Gate]) {
        let mut state = self.lock();
        if gates.is_empty() {
            state.held.remove(&(pool, event));
        } else {
            state.held.insert((pool, event), gates.to_vec());
        }
    }

    /// The gates that hold an event and are closed.
    pub(super) fn holders(&self, pool: usize, event: EventId) -> Vec<Gate> {
        // Gates are looked at outside of the lock: who waits at one asks the plan under the gate's lock.
        let mut gates = self.lock().held.get(&(pool, event)).cloned().unwrap_or_default();
        gates.retain(|gate| !gate.is_open());
        gates
    }

    /// A number in 0..1 that depends on nothing but the seed, the rule and the call.
    fn draw(&self, rule: u64, number: u64, call: &At<'_>) -> f64 {
        let device = (call.device.kind as u64) << 32 | u64::from(call.device.index);
        let place = match call.label {
            Some(label) => [u64::from(label.stream) + 1, label.seq, call.place],
            None => [0, 0, number],
        };
        let mut hash = self.seed;
        for part in [rule, call.point as u64, device].into_iter().chain(place) {
            hash = mixed(hash ^ mixed(part));
        }
        (hash >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics half way through a change, so a poisoned lock guards whole state.
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
fn mixed(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

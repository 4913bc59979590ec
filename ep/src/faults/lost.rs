//! Losing a device: what it had queued is driven to its end, so that nothing of it runs once the engine above, on hearing
//! of the loss, frees memory.
//!
//! Driving runs callers' functions and waits, so it must not happen
//! * inside of a function that a wrapped stream runs: it would wait for itself. [`FaultPlan::inside`] knows the threads
//!   that are in one; the next call on the device from outside makes up for it;
//! * for ever: a function may wait for what the thread that loses the device does next. A stream that is not over in
//!   [`PATIENCE`] is left, and tried again when memory is freed.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::closure::InlineFn;
use crate::device::{Device, DeviceId};
use crate::error::Error;
use crate::event::EventId;
use crate::faults::plan::{FaultPlan, Inner};
use crate::fn_context::FnContext;

/// How long a stream of a lost device is waited for: against hangs alone, what is queued in tests takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A stream to be driven to its end, and its device.
pub(super) struct Driven {
    device: Weak<dyn Device>,
    stream: Weak<Inner>,
}

impl Driven {
    pub(super) fn new(device: &Arc<dyn Device>, stream: &Arc<Inner>) -> Driven {
        Driven { device: Arc::downgrade(device), stream: Arc::downgrade(stream) }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.stream.strong_count() == 0
    }

    /// Drives it to its end; `false` if that is still to be done.
    fn drive(&self, ends: &mut Vec<EventId>) -> bool {
        let (Some(device), Some(stream)) = (self.device.upgrade(), self.stream.upgrade()) else {
            return true;
        };
        // In the middle of a call: whoever makes it drives the device once more when it is over.
        let Ok(mut stream) = stream.try_lock() else {
            return false;
        };
        let end = device.events().acquire();
        if stream.record(end).is_err() {
            // It takes nothing any more, so nothing of it is known to come.
            let _ = device.events().release(end);
            return true;
        }
        ends.push(end);
        !matches!(device.wait(end, Some(Instant::now() + PATIENCE)), Ok(false))
    }
}

impl FaultPlan {
    /// Loses a device now, as [`Fault::Lost`](crate::faults::Fault::Lost) does at a call.
    pub fn lose(&self, device: DeviceId, reason: &str) {
        let gates = {
            let mut state = self.lock();
            state.lost.entry(device).or_insert_with(|| reason.to_owned());
            state.undriven.insert(device);
            state.holding.clone()
        };
        gates.iter().for_each(|gate| gate.poke());
        self.drive(device);
    }

    /// Errs if the device is lost; then what it had queued is over, as far as this thread may see to that.
    pub(super) fn check(&self, device: DeviceId) -> Result<(), Error> {
        let (reason, undriven) = {
            let state = self.lock();
            (state.lost.get(&device).cloned(), state.undriven.contains(&device))
        };
        let Some(reason) = reason else {
            return Ok(());
        };
        if undriven {
            self.drive(device);
        }
        Err(Error::DeviceLost { device, reason })
    }

    /// Drives what a lost device has queued to its end, unless this thread is inside of a function.
    pub(super) fn drive(&self, device: DeviceId) {
        let streams = {
            let mut state = self.lock();
            if state.inside.contains_key(&thread::current().id()) {
                return;
            }
            state.undriven.remove(&device);
            state.streams.remove(&device).unwrap_or_default()
        };
        let mut ends = Vec::new();
        let left: Vec<Driven> = streams.into_iter().filter(|stream| !stream.drive(&mut ends)).collect();
        let mut state = self.lock();
        state.ends.entry(device).or_default().extend(ends);
        state.streams.entry(device).or_default().extend(left);
    }

    /// The events behind all that a lost device had queued. Whoever sees them passed comes after it.
    pub(super) fn ends(&self, device: DeviceId) -> Vec<EventId> {
        self.lock().ends.get(&device).cloned().unwrap_or_default()
    }

    /// Events that the plan keeps on lost devices: no engine gives them back.
    pub fn kept_events(&self) -> usize {
        self.lock().ends.values().map(Vec::len).sum()
    }

    /// `function`, which is known to be running while it does.
    pub(super) fn known(self: &Arc<Self>, mut function: InlineFn) -> InlineFn {
        let plan = Arc::clone(self);
        InlineFn::new(move |context: &mut FnContext<'_>| {
            let _inside = Inside::enter(&plan);
            function.call(context)
        })
    }
}

/// This thread is inside of a function.
struct Inside<'a>(&'a FaultPlan);

impl Inside<'_> {
    fn enter(plan: &FaultPlan) -> Inside<'_> {
        *plan.lock().inside.entry(thread::current().id()).or_default() += 1;
        Inside(plan)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let thread = thread::current().id();
        let mut state = self.0.lock();
        if let Some(depth) = state.inside.get_mut(&thread) {
            *depth -= 1;
            if *depth == 0 {
                state.inside.remove(&thread);
            }
        }
    }
}

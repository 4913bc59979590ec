//! Losing a device: its queued commands are run to completion, so that none of them runs after the engine above has learnt of the loss
//! and frees memory.
//!
//! Running them calls the caller's functions and waits, so it must not happen
//!
//! * inside a function that a wrapped stream runs, which would wait for itself. `State::inside` records the threads that are in
//!   one; the next call on the device from outside does the work instead;
//! * without a limit: a function may wait for a later action of the thread that loses the device. A stream that has not completed after
//!   [`DRAIN_TIMEOUT`] is left, and tried again when memory is freed.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use streamvm_ep::{Device, DeviceId, Error, EventId, FnContext, InlineFn};

use crate::faults::plan::{FaultPlan, Inner};

/// How long to wait for a stream of a lost device. Only a bound on hangs: queued commands of tests take microseconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream to be run to completion, and its device.
pub(super) struct StreamToDrain {
    device: Weak<dyn Device>,
    stream: Weak<Inner>,
}

impl StreamToDrain {
    pub(super) fn new(device: &Arc<dyn Device>, stream: &Arc<Inner>) -> StreamToDrain {
        StreamToDrain { device: Arc::downgrade(device), stream: Arc::downgrade(stream) }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.stream.strong_count() == 0
    }

    /// Runs the stream to completion; returns `false` if that must be tried again.
    fn drain(&self, ends: &mut Vec<EventId>) -> bool {
        let (Some(device), Some(stream)) = (self.device.upgrade(), self.stream.upgrade()) else {
            return true;
        };
        // A call of the stream is in progress: the thread that makes it runs the device to completion afterwards.
        let Ok(mut inner) = stream.try_lock() else {
            return false;
        };
        let end = device.events().acquire();
        let recorded = inner.record(end);
        // Waiting runs functions of the caller, which may need the thread of this stream, and that thread this lock.
        drop(inner);
        if recorded.is_err() {
            // The stream refuses commands, so nothing more of it is known to run.
            let _ = device.events().release(end);
            return true;
        }
        ends.push(end);
        !matches!(device.wait(end, Some(Instant::now() + DRAIN_TIMEOUT)), Ok(false))
    }
}

impl FaultPlan {
    /// Loses a device now, as [`Fault::Lost`](crate::faults::Fault::Lost) does at a call.
    pub fn lose(&self, device: DeviceId, reason: &str) {
        let gates = {
            let mut state = self.lock();
            state.lost.entry(device).or_insert_with(|| reason.to_owned());
            state.undrained.insert(device);
            state.holding.clone()
        };
        gates.iter().for_each(|gate| gate.recheck());
        self.drain(device);
    }

    /// Returns an error if the device is lost. Its queued commands have then completed, as far as this thread may wait for them.
    pub(super) fn check(&self, device: DeviceId) -> Result<(), Error> {
        let (reason, undrained) = {
            let state = self.lock();
            (state.lost.get(&device).cloned(), state.undrained.contains(&device))
        };
        let Some(reason) = reason else {
            return Ok(());
        };
        if undrained {
            self.drain(device);
        }
        Err(Error::DeviceLost { device, reason })
    }

    /// Runs the queued commands of a lost device to completion, unless this thread is inside a function.
    pub(super) fn drain(&self, device: DeviceId) {
        let streams = {
            let mut state = self.lock();
            if state.inside.contains_key(&thread::current().id()) {
                return;
            }
            state.undrained.remove(&device);
            state.streams.remove(&device).unwrap_or_default()
        };
        let mut ends = Vec::new();
        let left: Vec<StreamToDrain> = streams.into_iter().filter(|stream| !stream.drain(&mut ends)).collect();
        let mut state = self.lock();
        state.ends.entry(device).or_default().extend(ends);
        state.streams.entry(device).or_default().extend(left);
    }

    /// The events after all commands that a lost device had queued. A thread that sees them passed is ordered after those commands.
    pub(super) fn ends(&self, device: DeviceId) -> Vec<EventId> {
        self.lock().ends.get(&device).cloned().unwrap_or_default()
    }

    /// The number of events that the plan keeps on lost devices; no engine releases them.
    pub fn kept_events(&self) -> usize {
        self.lock().ends.values().map(Vec::len).sum()
    }

    /// Wraps `function` so that the plan knows the thread while it runs.
    pub(super) fn tracked(self: &Arc<Self>, mut function: InlineFn) -> InlineFn {
        let plan = Arc::clone(self);
        InlineFn::new(move |context: &mut FnContext<'_>| {
            let _inside = InsideFunction::enter(&plan);
            function.call(context)
        })
    }
}

impl FaultPlan {
    /// As long as the result lives, this thread runs no queued functions, as if it were inside of one: the next call on the device does that.
    pub(super) fn without_draining(&self) -> InsideFunction<'_> {
        InsideFunction::enter(self)
    }
}

/// This thread is inside of a function.
pub(super) struct InsideFunction<'a>(&'a FaultPlan);

impl InsideFunction<'_> {
    fn enter(plan: &FaultPlan) -> InsideFunction<'_> {
        *plan.lock().inside.entry(thread::current().id()).or_default() += 1;
        InsideFunction(plan)
    }
}

impl Drop for InsideFunction<'_> {
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

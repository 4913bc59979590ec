//! What kernels of registered ops keep on a device from call to call.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::names::device_id::DeviceId;
use crate::tensor::registered_op::RegisteredOp;

type State = Arc<dyn Any + Send + Sync>;

/// The states of registered ops on one device: each op has one, which its first call makes, and which is dropped with this. A device whose streams run kernels in this
/// address space has one of these, and passes it to [`KernelCall::run`](crate::KernelCall::run).
pub struct OpStates {
    device: DeviceId,
    states: Mutex<HashMap<RegisteredOp, State>>,
}

impl OpStates {
    /// Those of a device, of which there are none yet.
    pub fn new(device: DeviceId) -> OpStates {
        OpStates { device, states: Mutex::default() }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The state of an op. If it has none, `make` makes one, outside of the lock. Of several calls that make one at once, the first to be done counts.
    pub(crate) fn get(&self, op: RegisteredOp, make: &dyn Fn(DeviceId) -> State) -> State {
        if let Some(state) = self.states().get(&op) {
            return state.clone();
        }
        let made = make(self.device);
        // The lock is released before `made` is dropped, which is the last of it if another call was faster.
        self.states().entry(op).or_insert_with(|| made.clone()).clone()
    }

    fn states(&self) -> MutexGuard<'_, HashMap<RegisteredOp, State>> {
        // No code of a caller runs under the lock.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpStates {
    /// A state is the caller's, so its drop may panic: that keeps neither the others nor the device from being dropped.
    fn drop(&mut self) {
        let states = std::mem::take(&mut *self.states());
        for (_, state) in states {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(state))) {
                // The drop of the payload could panic, too.
                std::mem::forget(payload);
            }
        }
    }
}

impl fmt::Debug for OpStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: Vec<RegisteredOp> = self.states().keys().copied().collect();
        f.debug_struct("OpStates").field("device", &self.device).field("ops", &ops).finish()
    }
}

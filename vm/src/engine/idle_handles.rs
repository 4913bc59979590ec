//! A free list of engine handles, for the next engines (`docs/adr/tensors-and-engines.md`).
//!
//! A [`Handle`] is idle when its engine is gone and no resource is bound to it any more. Handles are never freed, because an
//! event, a future, or a thread that has just released the last resource may still read one. So a process has as many handles
//! as it ever had engines at one time, where an engine that is gone counts while resources are bound to it.
//!
//! The list is one per process: a forked child takes no handle of its parent, because a thread that is not in the child may
//! hold its locks.

use std::sync::Mutex;

use crate::engine::handle::Handle;
use crate::sync::fork::PerProcess;
use crate::sync::unpoisoned;

/// The idle handles of this process. This static also keeps them reachable for leak checkers.
static IDLE: PerProcess<Mutex<Vec<&'static Handle>>> = PerProcess::new();

/// Whether handles are reused. Not under loom and shuttle, whose locks may not outlive one execution of a model.
const REUSES: bool = !cfg!(any(loom, shuttle));

/// Takes an idle handle, if there is one. No other engine uses it until it is [`put`] back.
pub(crate) fn take() -> Option<&'static Handle> {
    if REUSES { unpoisoned(IDLE.get().lock()).pop() } else { None }
}

/// Adds a handle that has become idle. The caller puts it exactly once for each time that it was taken or made.
pub(crate) fn put(handle: &'static Handle) {
    if REUSES {
        unpoisoned(IDLE.get().lock()).push(handle);
    }
}

//! Idle handles: those whose engines are gone, and to which nothing is bound any more. The next engine takes one.
//!
//! Handles are never freed: an event, a future, or a thread that has just released the last resource may still look at one. So there are as
//! many as there were engines at one time, counting those that are gone while something is bound to them.
//!
//! A child of `fork` takes no handle of its parent's, whose locks may be held by threads that are not there.

use std::sync::Mutex;

use crate::fork::PerProcess;
use crate::handle::Handle;
use crate::sync::unpoisoned;

/// The idle handles of this process. Whoever looks for lost memory finds them here.
static IDLE: PerProcess<Mutex<Vec<&'static Handle>>> = PerProcess::new();

/// Locks of a model end with its execution: there each engine gets a handle of its own.
const REUSES: bool = !cfg!(any(loom, shuttle));

/// An idle handle, if there is one. The caller is the only one that has it.
pub(crate) fn take() -> Option<&'static Handle> {
    if REUSES { unpoisoned(IDLE.get().lock()).pop() } else { None }
}

/// Puts a handle back that has become idle. Once for each time that it was taken or made.
pub(crate) fn put(handle: &'static Handle) {
    if REUSES {
        unpoisoned(IDLE.get().lock()).push(handle);
    }
}

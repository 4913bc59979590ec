//! A thread-local flag: whether the current thread runs work of an engine.
//!
//! An engine thread must not block on an engine: it would wait for itself, or for a thread that waits for it. Each thread reads and
//! writes only its own flag.

use std::cell::Cell;

use crate::sync::thread_local;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the current thread as an engine thread until it ends.
pub(crate) fn enter() {
    HERE.with(|here| here.set(true));
}

/// Whether the current thread runs engine work now. False while the thread's locals are being destroyed.
pub(crate) fn is_here() -> bool {
    HERE.try_with(Cell::get).unwrap_or(false)
}

/// Marks the current thread as an engine thread while the guard lives: for a caller that runs instructions itself.
pub(crate) fn visit() -> Visit {
    Visit { before: HERE.with(|here| here.replace(true)) }
}

/// Restores the former mark of the thread when it is dropped; see [`visit`].
pub(crate) struct Visit {
    before: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        HERE.with(|here| here.set(self.before));
    }
}

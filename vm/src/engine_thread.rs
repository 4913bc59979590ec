//! Whether this thread belongs to an engine. Such a thread must not wait: it would wait for itself, or for a thread
//! that waits for it.

use std::cell::Cell;

use crate::sync::thread_local;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as an engine's own, for good.
pub(crate) fn enter() {
    HERE.with(|here| here.set(true));
}

/// Whether this thread runs engine work now.
pub(crate) fn is_here() -> bool {
    HERE.try_with(Cell::get).unwrap_or(false)
}

/// Marks this thread as an engine's own while the guard lives: a caller that runs instructions itself.
pub(crate) fn visit() -> Visit {
    Visit { before: HERE.with(|here| here.replace(true)) }
}

/// See [`visit`].
pub(crate) struct Visit {
    before: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        HERE.with(|here| here.set(self.before));
    }
}

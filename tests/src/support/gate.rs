//! Gates: hold functions inside an engine until the test opens them.

use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use streamvm::{FnContext, FnError};

use crate::support::patience::PATIENCE;

/// A gate at which functions wait until it is open. Clones refer to the same gate.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    entered: usize,
}

impl Gate {
    /// Waits until the gate is open.
    ///
    /// # Panics
    /// If this takes longer than [`PATIENCE`]: a hang is a failure.
    pub fn pass(&self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.entered += 1;
        self.0.changed.notify_all();
        let (state, timeout) = self
            .0
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !state.open)
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!timeout.timed_out(), "the gate was not opened in time");
    }

    /// Opens the gate; it stays open.
    pub fn open(&self) {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        self.0.changed.notify_all();
    }

    /// Waits until `count` calls of [`Gate::pass`] have reached the gate.
    ///
    /// # Panics
    /// If this takes longer than [`PATIENCE`].
    pub fn wait_entered(&self, count: usize) {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, timeout) = self
            .0
            .changed
            .wait_timeout_while(state, PATIENCE, |state| state.entered < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{} of {count} came to the gate", state.entered);
    }

    /// Number of calls of [`Gate::pass`] that have reached the gate.
    pub fn entered(&self) -> usize {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).entered
    }

    /// A function for an instruction that only waits at the gate.
    pub fn function(&self) -> impl for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static {
        let gate = self.clone();
        move |_: &mut FnContext<'_>| {
            gate.pass();
            Ok(())
        }
    }
}

/// A closed [`Gate`] that opens when it is dropped. Declare it after the engine whose functions wait at it, so that a failing test does not
/// hang while it drops the engine.
#[derive(Debug)]
pub struct ClosedGate(Gate);

impl ClosedGate {
    /// A closed gate.
    #[expect(clippy::new_without_default, reason = "a gate is closed on purpose")]
    pub fn new() -> ClosedGate {
        ClosedGate(Gate::default())
    }
}

impl Deref for ClosedGate {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.0
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        self.0.open();
    }
}

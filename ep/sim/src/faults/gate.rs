//! Gates: stalled calls and held commands wait for them.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A gate that is closed until a test opens it, for good. Clones share one gate.
#[derive(Clone, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    arrived: usize,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.lock().open = true;
        self.0.changed.notify_all();
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.lock().open
    }

    /// The number of calls that have arrived at the gate or are held by it.
    pub fn arrived(&self) -> usize {
        self.lock().arrived
    }

    /// Waits until `count` calls have arrived, or until the deadline; returns `false` at the deadline.
    pub fn wait_arrived(&self, count: usize, deadline: Option<Instant>) -> bool {
        self.wait_while(deadline, |state| state.arrived < count)
    }

    /// Waits until the gate is open or `give_up` returns true, or until the deadline; returns `false` at the deadline. Each
    /// [`Gate::recheck`] calls `give_up` again.
    pub(super) fn wait_open(&self, deadline: Option<Instant>, give_up: impl Fn() -> bool) -> bool {
        self.wait_while(deadline, |state| !state.open && !give_up())
    }

    /// Counts a call that has arrived.
    pub(super) fn arrive(&self) {
        self.lock().arrived += 1;
        self.0.changed.notify_all();
    }

    /// Makes every waiter check again.
    pub(super) fn recheck(&self) {
        // Under the lock, so that no waiter is between its check and its sleep.
        let _held = self.lock();
        self.0.changed.notify_all();
    }

    pub(super) fn is_same(&self, other: &Gate) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn wait_while(&self, deadline: Option<Instant>, closed: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        while closed(&state) {
            let Some(deadline) = deadline else {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let (woken, _) = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = woken;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never blocks, because a plan is printed under its own lock.
        match self.0.state.try_lock() {
            Ok(state) => write!(f, "Gate({}, {} came)", if state.open { "open" } else { "closed" }, state.arrived),
            Err(_) => f.write_str("Gate(in use)"),
        }
    }
}

//! Gates: what stalls and held commands wait for.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A door that is closed until a test opens it, for good. Clones are the same door.
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
    came: usize,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Opens it.
    pub fn open(&self) {
        self.lock().open = true;
        self.0.changed.notify_all();
    }

    /// Is it open?
    pub fn is_open(&self) -> bool {
        self.lock().open
    }

    /// How many calls have come to it, or have been held by it.
    pub fn came(&self) -> usize {
        self.lock().came
    }

    /// Waits until `count` calls have come to it, or until the deadline: then `false`.
    pub fn wait_came(&self, count: usize, deadline: Option<Instant>) -> bool {
        self.wait_while(deadline, |state| state.came < count)
    }

    /// Waits until it is open or `give_up` holds, which is asked again at each [`Gate::poke`]; or until the deadline:
    /// then `false`.
    pub(super) fn pass(&self, deadline: Option<Instant>, give_up: impl Fn() -> bool) -> bool {
        self.wait_while(deadline, |state| !state.open && !give_up())
    }

    /// Counts a call that has come.
    pub(super) fn arrive(&self) {
        self.lock().came += 1;
        self.0.changed.notify_all();
    }

    /// Has everyone who waits look again.
    pub(super) fn poke(&self) {
        // Under the lock, so that nobody is between looking and sleeping.
        let _held = self.lock();
        self.0.changed.notify_all();
    }

    pub(super) fn is(&self, other: &Gate) -> bool {
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
        // No code here panics half way through a change, so a poisoned lock guards whole state.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never waits: a plan is printed under its own lock.
        match self.0.state.try_lock() {
            Ok(state) => write!(f, "Gate({}, {} came)", if state.open { "open" } else { "closed" }, state.came),
            Err(_) => f.write_str("Gate(in use)"),
        }
    }
}

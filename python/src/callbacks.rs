//! Python functions that an engine calls once a tensor is there. The end of the interpreter waits for them: a thread that asks for the interpreter's lock later never gets it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use streamvm::Error;

use crate::errors;

/// How long the end of the interpreter waits before it lets Python handle signals.
const TRY: Duration = Duration::from_millis(50);

/// How many callbacks this process has given to engines that were not called yet. A forked child has none of those of its parent.
struct Pending {
    process: u32,
    count: usize,
    /// The interpreter ends.
    ended: bool,
}

static PENDING: Mutex<Pending> = Mutex::new(Pending { process: 0, count: 0, ended: false });
static CALLED: Condvar = Condvar::new();

fn pending() -> MutexGuard<'static, Pending> {
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if pending.process != process {
        *pending = Pending { process, count: 0, ended: false };
    }
    pending
}

/// A callback that was given to an engine.
pub(crate) struct Callback(Option<Py<PyAny>>);

impl Callback {
    pub(crate) fn new(function: Py<PyAny>) -> Callback {
        pending().count += 1;
        Callback(Some(function))
    }

    /// Calls it with None, or with the exception of a failure.
    pub(crate) fn call(mut self, outcome: Result<(), Error>) {
        let Some(function) = self.0.take() else { return };
        Python::try_attach(|py| {
            let failure = outcome.err().map(|error| errors::exception(py, &error, None));
            if let Err(error) = function.call1(py, (failure,)) {
                error.write_unraisable(py, None);
            }
        });
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        called();
    }
}

fn called() {
    let mut pending = pending();
    // In a forked child it was not counted.
    pending.count = pending.count.saturating_sub(1);
    CALLED.notify_all();
}

/// Calls `code`, which needs the interpreter's lock, on any thread; once the interpreter ends, does nothing.
pub(crate) fn call_before_the_end(code: impl FnOnce(Python<'_>)) {
    {
        let mut pending = pending();
        if pending.ended {
            return;
        }
        pending.count += 1;
    }
    Python::try_attach(code);
    called();
}

/// Waits until all were called, those of [`call_before_the_end`] for good.
///
/// # Errors
/// The exception that a signal handler raises.
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    pending().ended = true;
    loop {
        let left = py.detach(|| {
            let waited = CALLED.wait_timeout_while(pending(), TRY, |pending| pending.count > 0);
            waited.unwrap_or_else(PoisonError::into_inner).0.count
        });
        if left == 0 {
            return Ok(());
        }
        py.check_signals()?;
    }
}

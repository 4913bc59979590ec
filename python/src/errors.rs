//! Python exceptions from the engine's errors. Their classes are in `streamvm/_errors.py`.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use streamvm::{BuildError, Cause, Error, Site};

/// How many exceptions of functions are kept for those who wait. Each keeps the variables of the functions that it has passed.
const KEPT: usize = 16;

/// Exceptions that functions have raised, with their texts and the lines that submitted the functions: the engine's error has the text alone.
static RAISED: Mutex<VecDeque<(String, Option<Site>, PyErr)>> = Mutex::new(VecDeque::new());

/// Keeps the exception of a function that was submitted at `site` for those who wait for its writes; returns the text for the engine.
pub(crate) fn keep(py: Python<'_>, error: PyErr, site: Option<Site>) -> String {
    let text = error.to_string();
    let mut raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
    let dropped = if raised.len() == KEPT { raised.pop_front() } else { None };
    raised.push_back((text.clone(), site, error.clone_ref(py)));
    drop(raised);
    // It may run code of the program, so it comes after the lock.
    drop(dropped);
    text
}

/// Drops the exceptions that are kept.
pub(crate) fn forget() {
    let dropped = std::mem::take(&mut *RAISED.lock().unwrap_or_else(PoisonError::into_inner));
    // After the lock, as above.
    drop(dropped);
}

fn raised(py: Python<'_>, text: &str, site: Site) -> Option<PyErr> {
    let raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = raised.iter().rev().find(|(known, at, _)| known == text && *at == Some(site));
    found.map(|(_, _, error)| error.clone_ref(py))
}

/// The exception for an error that a call at `site` returned.
pub(crate) fn exception(py: Python<'_>, error: &Error, site: Option<Site>) -> PyErr {
    let class = match error {
        Error::Failed(failure) => match &failure.cause {
            Cause::Device(streamvm::ep::Error::DeviceLost { .. }) => "DeviceLostError",
            _ => "OperationError",
        },
        Error::Device { error: streamvm::ep::Error::DeviceLost { .. }, .. } => "DeviceLostError",
        Error::OutOfMemory { .. } => "OutOfMemoryError",
        Error::Shutdown { .. } | Error::Forked { .. } => "ClosedError",
        Error::Lent { .. } => "LentError",
        Error::Stalled { .. } => "StalledError",
        Error::WouldDeadlock { .. } => "DeadlockError",
        Error::Build { error: BuildError::DTypes { .. }, .. } => "DTypeError",
        _ => "UsageError",
    };
    let raise = || -> PyResult<PyErr> {
        let made = instance(py, class, &error.without_call())?;
        if let Error::Failed(failure) = error {
            made.setattr("operation", &failure.what)?;
            made.setattr("stream", failure.stream.to_string())?;
            made.setattr("filename", failure.site.file())?;
            made.setattr("lineno", failure.site.line())?;
            if let Some(site) = site.filter(|site| *site != failure.site) {
                let note = format!("waited for at {}:{}", site.file(), site.line());
                // Python 3.10 has no notes.
                if made.hasattr("add_note")? {
                    made.call_method1("add_note", (note,))?;
                }
            }
            let cause = if let Cause::Function(text) = &failure.cause { raised(py, text, failure.site) } else { None };
            let found = PyErr::from_value(made);
            found.set_cause(py, cause);
            return Ok(found);
        }
        Ok(PyErr::from_value(made))
    };
    raise().unwrap_or_else(|failed| failed)
}

/// The exception for a wait that took too long.
pub(crate) fn timed_out(py: Python<'_>, limit: Duration, waited_for: &str) -> PyErr {
    let text = format!("{waited_for} has not passed after {limit:?}; the work goes on, wait again");
    instance(py, "WaitTimeoutError", &text).map_or_else(|failed| failed, PyErr::from_value)
}

/// The exception for arguments that do not fit.
pub(crate) fn usage(py: Python<'_>, text: &str) -> PyErr {
    instance(py, "UsageError", text).map_or_else(|failed| failed, PyErr::from_value)
}

/// The exception for ranks that cannot communicate.
pub(crate) fn of_ranks(py: Python<'_>, text: &str) -> PyErr {
    instance(py, "RankError", text).map_or_else(|failed| failed, PyErr::from_value)
}

fn instance<'py>(py: Python<'py>, class: &str, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("streamvm._errors")?.getattr(class)?.call((text,), None::<&Bound<'py, PyDict>>)
}

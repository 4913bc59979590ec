//! Calls into the engine: without the interpreter's lock, with the site of the Python line, and ended by Ctrl-C.
//!
//! A call that waits gives up after a while, lets Python handle signals, and is made again. So an interrupt ends each wait, and what was submitted goes on. What waits for a submission of its own
//! submits in one call and waits in another, so that nothing is submitted twice; a call that makes several submissions may repeat those that only it knows.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use streamvm::{Error, TimeLimit};

use crate::{caller, errors};

/// The longest time until an interrupt is seen.
const TRY: Duration = Duration::from_millis(50);

/// Calls `f` until it ends within the time of a try.
///
/// # Errors
/// The exception of the engine's error, or one that a signal handler raises.
pub(crate) fn call<T: Send>(py: Python<'_>, f: impl FnMut() -> Result<T, Error> + Send) -> PyResult<T> {
    call_within(py, None, f)
}

/// Calls `f`, which neither waits nor submits, as a view.
///
/// # Errors
/// The exception of the engine's error.
pub(crate) fn at_once<T>(py: Python<'_>, f: impl FnOnce() -> Result<T, Error>) -> PyResult<T> {
    f().map_err(|error| errors::exception(py, &error, None))
}

/// [`call`], with at most this time in all.
///
/// # Errors
/// As [`call`]; the exception of a timeout.
pub(crate) fn call_within<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    mut f: impl FnMut() -> Result<T, Error> + Send,
) -> PyResult<T> {
    let site = caller::site(py)?;
    // A time that the clock cannot hold is no limit.
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let time = left.map_or(TRY, |left| left.min(TRY));
        let outcome = py.detach(|| {
            let _site = site.map(streamvm::Site::enter);
            let _limit = TimeLimit(time).enter();
            f()
        });
        match outcome {
            Ok(result) => return Ok(result),
            Err(Error::Timeout { waited_for, .. }) if left.is_some_and(|left| left <= TRY) => {
                return Err(errors::timed_out(py, limit.unwrap_or_default(), &waited_for));
            }
            Err(Error::Timeout { .. }) => py.check_signals()?,
            Err(error) => return Err(errors::exception(py, &error, site)),
        }
    }
}

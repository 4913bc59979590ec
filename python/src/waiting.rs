//! Calls into the engine: without the interpreter's lock, with the site of the Python line, and ended by Ctrl-C.
//!
//! A call that waits gives up after a while, lets Python handle signals, and is made again. So an interrupt ends each wait, and what was submitted goes on.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use streamvm::{Error, TimeLimit};

use crate::{caller, errors};

/// How long the first try waits. Each further one waits twice as long, up to [`LONGEST`]: a try may submit a copy anew.
const FIRST: Duration = Duration::from_millis(20);
/// The longest time until an interrupt is seen.
const LONGEST: Duration = Duration::from_millis(320);

/// Calls `f` until it ends within the time of a try.
///
/// # Errors
/// The exception of the engine's error; what a signal handler raises.
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
    let mut time = FIRST;
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let this_time = left.map_or(time, |left| time.min(left));
        let outcome = py.detach(|| {
            let _site = site.map(streamvm::Site::enter);
            let _limit = TimeLimit(this_time).enter();
            f()
        });
        match outcome {
            Ok(result) => return Ok(result),
            Err(Error::Timeout { waited_for, .. }) if left.is_some_and(|left| left <= time) => {
                return Err(errors::timed_out(py, limit.unwrap_or_default(), &waited_for));
            }
            Err(Error::Timeout { .. }) => py.check_signals()?,
            Err(error) => return Err(errors::exception(py, &error, site)),
        }
        time = (time * 2).min(LONGEST);
    }
}

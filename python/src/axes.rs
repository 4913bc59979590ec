//! Axes as Python counts them: from the last one where negative.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

/// Axes of an argument: one, or several.
#[derive(FromPyObject)]
pub(crate) enum AxesArgument {
    One(isize),
    Several(Vec<isize>),
}

/// The axis, counted from the first one.
///
/// # Errors
/// `IndexError`: there is no such axis.
pub(crate) fn axis(axis: isize, rank: usize) -> PyResult<usize> {
    let found = if axis < 0 { rank.checked_sub(axis.unsigned_abs()) } else { Some(axis.unsigned_abs()) };
    found.filter(|axis| *axis < rank).ok_or_else(|| {
        PyIndexError::new_err(format!(
            "axis {axis} is out of range for {rank} axes: it must be at least -{rank} and less than {rank}"
        ))
    })
}

/// The axes, counted from the first one, ascending; all of them if none are given.
///
/// # Errors
/// `IndexError`: there is no such axis, or one is named twice.
pub(crate) fn axes(given: Option<AxesArgument>, rank: usize) -> PyResult<Vec<usize>> {
    let given = match given {
        None => return Ok((0..rank).collect()),
        Some(AxesArgument::One(one)) => vec![one],
        Some(AxesArgument::Several(several)) => several,
    };
    let mut found = given.iter().map(|one| axis(*one, rank)).collect::<PyResult<Vec<usize>>>()?;
    found.sort_unstable();
    if found.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(PyIndexError::new_err(format!("axes {given:?} name an axis twice")));
    }
    Ok(found)
}

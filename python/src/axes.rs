//! Axes as Python counts them, from the last one where negative; and ops over them.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use streamvm::{Axes, BuildError, Error, Op, Params, Tensor};

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

/// A reduction over these axes. Over none, each element is by itself: no axes in an op stand for all of them.
///
/// # Errors
/// As [`Tensor::op`].
pub(crate) fn reduced(tensor: &Tensor, op: Op, axes: &[usize], keepdims: bool) -> Result<Tensor, Error> {
    let over =
        |axes: &[usize]| -> Result<Params, Error> { Ok(Params::over(Axes::new(axes).map_err(BuildError::from)?)) };
    if axes.is_empty() && tensor.rank() > 0 {
        return tensor.reshape(&[tensor.numel(), 1])?.op(op, &[], over(&[1])?)?.reshape(tensor.dims());
    }
    let reduced = tensor.op(op, &[], over(axes)?)?;
    if !keepdims {
        return Ok(reduced);
    }
    let sizes = tensor.dims().iter().enumerate();
    reduced.reshape(&sizes.map(|(axis, size)| if axes.contains(&axis) { 1 } else { *size }).collect::<Vec<usize>>())
}

/// The elements of an axis at these indices, whose axes come in its place.
///
/// # Errors
/// As [`Tensor::index_select`].
pub(crate) fn taken(tensor: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor, Error> {
    // The op takes the rows of a matrix.
    let mut order: Vec<usize> = (0..tensor.rank()).collect();
    order.remove(axis);
    order.insert(0, axis);
    let rows = tensor.permute(&order)?;
    let (count, rest) = (rows.dims()[0], &rows.dims()[1..]);
    let taken = rows.reshape(&[count, rest.iter().product()])?.index_select(indices)?;
    let rows = taken.reshape(&[indices.dims(), rest].concat())?;
    let (new, rank) = (indices.rank(), indices.rank() + tensor.rank() - 1);
    let mut back: Vec<usize> = (new..rank).collect();
    back.splice(axis..axis, 0..new);
    rows.permute(&back)
}

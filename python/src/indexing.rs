//! Keys in brackets, as views: numbers, slices, `...` and `None`. Masks and indices are in `streamvm/_indexing.py`.

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PySlice, PyTuple};
use streamvm::{Layout, Shape, Tensor};

use crate::waiting;

/// A part of a key.
enum Part {
    /// The place on an axis, which goes.
    At(isize),
    /// A slice of an axis.
    Slice(Py<PySlice>),
    /// A new axis of size 1.
    New,
    /// All axes that no other part names.
    Rest,
}

/// The parts of a key; `None` if it has an array.
fn parts(key: &Bound<'_, PyAny>) -> PyResult<Option<Vec<Part>>> {
    let items: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        let is_truth = item.is_instance_of::<pyo3::types::PyBool>();
        parts.push(if item.is_none() {
            Part::New
        } else if item.is_instance_of::<PyEllipsis>() {
            Part::Rest
        } else if let Ok(slice) = item.cast::<PySlice>() {
            Part::Slice(slice.clone().unbind())
        } else if item.is_instance_of::<crate::tensor::PyTensor>() || is_truth {
            return Ok(None);
        } else {
            let index = item.call_method0("__index__").map_err(|_| {
                let kind = item.get_type().name().map_or_else(|_| "unknown type".to_owned(), |name| name.to_string());
                PyTypeError::new_err(format!("a key has integers, slices, ..., None and tensors, and no {kind}; make a tensor of an array or a list by asarray"))
            })?;
            let place = index.extract::<isize>();
            Part::At(place.map_err(|_| PyIndexError::new_err(format!("index {index} is out of range for every axis")))?)
        });
    }
    Ok(Some(parts))
}

/// The view that a key names; `None` if the key has an array. Slices with negative steps give a copy in their order.
///
/// # Errors
/// `IndexError`: the key names more axes than there are, or a place that is on none.
pub(crate) fn view(tensor: &Tensor, key: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let py = key.py();
    let Some(parts) = parts(key)? else { return Ok(None) };
    let layout = tensor.layout();
    let (dims, strides) = (layout.shape().dims(), layout.strides());
    let named = parts.iter().filter(|part| matches!(part, Part::At(_) | Part::Slice(_))).count();
    let rests = parts.iter().filter(|part| matches!(part, Part::Rest)).count();
    if rests > 1 {
        return Err(PyIndexError::new_err("a key has ... at most once"));
    }
    if named > dims.len() {
        return Err(PyIndexError::new_err(format!("the key names {named} axes, and the tensor has {}", dims.len())));
    }
    let (mut new_dims, mut new_strides, mut offset, mut flipped) =
        (Vec::new(), Vec::new(), layout.offset(), Vec::new());
    let mut axis = 0;
    let rest = dims.len() - named;
    let keep = |count: usize, axis: &mut usize, new_dims: &mut Vec<usize>, new_strides: &mut Vec<usize>| {
        for _ in 0..count {
            new_dims.push(dims[*axis]);
            new_strides.push(strides[*axis]);
            *axis += 1;
        }
    };
    for part in parts {
        match part {
            Part::New => {
                new_dims.push(1);
                new_strides.push(0);
            }
            Part::Rest => keep(rest, &mut axis, &mut new_dims, &mut new_strides),
            Part::At(place) => {
                let size = dims[axis];
                let from_first =
                    if place < 0 { size.checked_sub(place.unsigned_abs()) } else { Some(place.unsigned_abs()) };
                let Some(found) = from_first.filter(|found| *found < size) else {
                    return Err(PyIndexError::new_err(format!(
                        "index {place} is out of range for axis {axis} with {size} elements"
                    )));
                };
                offset += found * strides[axis];
                axis += 1;
            }
            Part::Slice(slice) => {
                let size = isize::try_from(dims[axis])?;
                let indices = slice.bind(py).indices(size)?;
                let (count, step) = (indices.slicelength, indices.step);
                // Of a slice backwards the last element is the first in memory.
                let first = if step < 0 { indices.start + step * (isize::try_from(count)? - 1) } else { indices.start };
                if count > 0 {
                    offset += first.unsigned_abs() * strides[axis];
                }
                if step < 0 {
                    flipped.push(new_dims.len());
                }
                new_dims.push(count);
                new_strides.push(strides[axis] * step.unsigned_abs());
                axis += 1;
            }
        }
    }
    if rests == 0 {
        keep(rest, &mut axis, &mut new_dims, &mut new_strides);
    }
    let shape = Shape::new(&new_dims).map_err(|error| crate::errors::usage(py, &error.to_string()))?;
    let offset = if shape.elements() == 0 { 0 } else { offset };
    let layout = Layout::with_strides(shape, &new_strides, offset)
        .map_err(|error| crate::errors::usage(py, &error.to_string()))?;
    let view = waiting::at_once(py, || tensor.owner().view(layout))?;
    let backwards = !flipped.is_empty() && view.numel() > 0;
    Ok(Some(if backwards { waiting::call(py, || view.flip(&flipped))? } else { view }))
}

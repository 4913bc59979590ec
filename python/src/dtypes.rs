//! Dtypes, and which one two of them give: the table of the Python array API standard, with the 16-bit floats below `float32`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use streamvm::DType;

/// An element type of tensors, such as `streamvm.float32`. Two are equal if they have one name; a text or a NumPy dtype of that name is taken in its place.
#[pyclass(name = "DType", module = "streamvm", frozen, eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PyDType(pub(crate) DType);

/// All dtypes.
pub(crate) const ALL: [PyDType; 13] = {
    let mut all = [PyDType(DType::Bool); 13];
    let mut place = 0;
    while place < all.len() {
        all[place] = PyDType(DType::ALL[place]);
        place += 1;
    }
    all
};

#[pymethods]
impl PyDType {
    /// Its name, as NumPy has it.
    #[getter]
    pub(crate) fn name(&self) -> &'static str {
        match self.0 {
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::Bool => "bool",
        }
    }

    /// The bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }

    fn __repr__(&self) -> String {
        format!("streamvm.{}", self.name())
    }

    fn __str__(&self) -> &'static str {
        self.name()
    }

    /// By its name, for `pickle` and `copy`.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (&'static str,))> {
        Ok((py.import("streamvm._dtypes")?.getattr("named")?, (self.name(),)))
    }
}

/// A dtype as an argument: one of this package, a text, or anything that NumPy takes for a dtype.
pub(crate) struct AnyDType(pub(crate) DType);

impl<'a, 'py> FromPyObject<'a, 'py> for AnyDType {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<AnyDType> {
        if let Ok(dtype) = given.cast::<PyDType>() {
            return Ok(AnyDType(dtype.get().0));
        }
        let name: String = match given.extract::<String>() {
            Ok(name) => name,
            Err(_) => given.py().import("numpy")?.getattr("dtype")?.call1((given,))?.getattr("name")?.extract()?,
        };
        let found = ALL.iter().find(|dtype| dtype.name() == name);
        found.map(|dtype| AnyDType(dtype.0)).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(PyDType::name).collect();
            PyValueError::new_err(format!("there is no dtype {name:?}; there are {}", names.join(", ")))
        })
    }
}

/// How a float, a signed and an unsigned integer rank among their kind.
fn bits(dtype: DType) -> usize {
    8 * dtype.size()
}

pub(crate) fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

pub(crate) fn is_integer(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::Bool
}

/// The dtype in which two can be computed together; `None` for kinds that the standard leaves apart: bool, integers and floats, and `uint64` beside signed integers.
fn common(one: DType, other: DType) -> Option<DType> {
    if one == other {
        return Some(one);
    }
    let (small, large) = if bits(one) <= bits(other) { (one, other) } else { (other, one) };
    match (one.is_float(), other.is_float()) {
        // The two of 16 bits have no common dtype of that size.
        (true, true) if bits(small) == bits(large) => Some(DType::F32),
        (true, true) => Some(large),
        (false, false) if one != DType::Bool && other != DType::Bool => {
            match (is_signed(small), is_signed(large)) {
                (true, true) | (false, false) => Some(large),
                (false, true) if bits(small) < bits(large) => Some(large),
                // One that holds all of both.
                _ => [DType::I16, DType::I32, DType::I64].into_iter().find(|it| bits(*it) > bits(large)),
            }
        }
        _ => None,
    }
}

/// [`common`], or the exception that names both.
pub(crate) fn common_or_raise(one: DType, other: DType) -> PyResult<DType> {
    common(one, other).ok_or_else(|| {
        let [one, other] = [one, other].map(|it| PyDType(it).name());
        PyTypeError::new_err(format!(
            "{one} and {other} have no common dtype; convert one of them first, as with streamvm.astype(x, streamvm.{one})"
        ))
    })
}

/// The dtype in which tensors of these dtypes are computed together.
///
/// Raises TypeError where the array API standard has none: for bool, integers and floats among each other.
#[pyfunction]
#[pyo3(signature = (first, /, *others))]
pub(crate) fn result_type(first: AnyDType, others: Vec<AnyDType>) -> PyResult<PyDType> {
    let found = others.into_iter().try_fold(first.0, |found, AnyDType(dtype)| common_or_raise(found, dtype))?;
    Ok(PyDType(found))
}

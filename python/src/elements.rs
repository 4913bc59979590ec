//! Elements from and to NumPy arrays, copied: the engine reads and writes a tensor later than the call that says so.

use std::time::Duration;

use numpy::{PyArrayDyn, PyArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use streamvm::{DType, Element, Error, FnContext, FnError, Place, Reading, Site, Tensor, TimeLimit, Vm, f16};

/// Runs code with the type of a dtype that NumPy has.
macro_rules! of_dtype {
    ($dtype:expr, $type:ident => $code:expr, $other:expr) => {
        match $dtype {
            DType::F32 => {
                type $type = f32;
                $code
            }
            DType::F64 => {
                type $type = f64;
                $code
            }
            DType::F16 => {
                type $type = f16;
                $code
            }
            DType::I8 => {
                type $type = i8;
                $code
            }
            DType::I16 => {
                type $type = i16;
                $code
            }
            DType::I32 => {
                type $type = i32;
                $code
            }
            DType::I64 => {
                type $type = i64;
                $code
            }
            DType::U8 => {
                type $type = u8;
                $code
            }
            DType::U16 => {
                type $type = u16;
                $code
            }
            DType::U32 => {
                type $type = u32;
                $code
            }
            DType::U64 => {
                type $type = u64;
                $code
            }
            DType::Bool => {
                type $type = bool;
                $code
            }
            DType::BF16 => $other,
        }
    };
}

fn no_such_dtype() -> PyErr {
    PyTypeError::new_err(
        "NumPy has no bfloat16; convert the tensor first, as with streamvm.astype(x, streamvm.float32)",
    )
}

/// The elements of an array, in the order of rows.
fn copied<T: Element + numpy::Element>(array: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let array = array.cast::<PyArrayDyn<T>>()?.readonly();
    Ok(array.as_slice()?.to_vec())
}

/// A tensor with the elements of an array, which has no gaps.
///
/// # Errors
/// The array has another dtype; those of [`Vm::from_slice_on`].
pub(crate) fn tensor_of(
    vm: &Vm,
    array: &Bound<'_, PyAny>,
    dtype: DType,
    shape: &[usize],
    place: Place,
) -> PyResult<Tensor> {
    of_dtype!(
        dtype,
        T => {
            // Into memory that the host can access, copying waits for nothing but memory.
            if place.device().is_none_or(|device| device.kind.info().host_memory) {
                let array = array.cast::<PyArrayDyn<T>>()?.readonly();
                let _site = crate::caller::site(array.py())?.map(Site::enter);
                let _at_once = TimeLimit(Duration::ZERO).enter();
                match vm.from_slice_on(place, array.as_slice()?, shape) {
                    Err(Error::Timeout { .. }) => {}
                    made => return made.map_err(|error| crate::errors::exception(array.py(), &error, None)),
                }
            }
            // Another thread may change the array while this one waits without the lock.
            let elements = copied::<T>(array)?;
            crate::waiting::call(array.py(), || vm.from_slice_on(place, &elements, shape))
        },
        Err(no_such_dtype())
    )
}

/// Elements that a call waits for, before they are an array.
trait Array: Send + Sync {
    /// Waits for them; may be called again.
    fn wait(&self) -> Result<(), Error>;
    fn into_array<'py>(self: Box<Self>, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>>;
}

impl<T: Element + numpy::Element> Array for Reading<Vec<T>> {
    fn wait(&self) -> Result<(), Error> {
        Reading::wait(self)
    }

    fn into_array<'py>(self: Box<Self>, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        // They are there.
        let elements = self.into_elements().map_err(|error| crate::errors::exception(py, &error, None))?;
        array_from(py, elements, shape)
    }
}

fn array_from<'py, T: numpy::Element>(
    py: Python<'py>,
    elements: Vec<T>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let array = numpy::PyArray1::from_vec(py, elements).reshape(shape)?.into_any();
    // Without axes NumPy gives a number of its own.
    if shape.is_empty() { py.import("numpy")?.call_method1("asarray", (array,)) } else { Ok(array) }
}

fn read<T: Element + numpy::Element>(tensor: &Tensor) -> Result<Box<dyn Array>, Error> {
    Ok(Box::new(tensor.start_read::<T>()?))
}

/// A new NumPy array with the elements of the tensor, which are waited for.
///
/// # Errors
/// NumPy has no such dtype; those of [`Tensor::to_vec`].
pub(crate) fn array_of<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let read = of_dtype!(tensor.dtype(), T => read::<T>, return Err(no_such_dtype()));
    let elements = crate::waiting::call(py, || read(tensor))?;
    crate::waiting::call(py, || elements.wait())?;
    elements.into_array(py, tensor.dims())
}

/// Copies of what a function reads, as arrays.
///
/// # Errors
/// NumPy has no such dtype.
pub(crate) fn arguments<'py>(py: Python<'py>, context: &FnContext<'_>) -> Result<Bound<'py, PyList>, FnError> {
    let list = PyList::empty(py);
    for place in 0..context.reads.len() {
        let layout = context.reads.layout(place)?;
        let array = of_dtype!(
            context.reads.dtype(place)?,
            T => {
                let elements: Vec<T> = context.reads.get::<T>(place)?.to_vec();
                array_from(py, elements, layout.shape().dims())
            },
            Err(no_such_dtype())
        );
        list.append(array?)?;
    }
    Ok(list)
}

/// Writes an array into what a function writes, in its dtype and shape.
///
/// # Errors
/// The array has another shape, or elements that its dtype cannot hold.
pub(crate) fn write(context: &mut FnContext<'_>, place: usize, result: &Bound<'_, PyAny>) -> Result<(), FnError> {
    let (dtype, dims) = (context.writes.dtype(place)?, context.writes.layout(place)?.shape().dims().to_vec());
    let numpy = result.py().import("numpy")?;
    let name = crate::dtypes::PyDType(dtype).name();
    let array = numpy.call_method1("asarray", (result,))?;
    let found: Vec<usize> = array.getattr("shape")?.extract()?;
    if found != dims {
        return Err(format!(
            "result {place} has the shape {found:?}, and the tensor that it is written to has {dims:?}"
        )
        .into());
    }
    let mut array = array.call_method("astype", (name,), Some(&casting(result.py())?))?;
    if dtype == DType::Bool {
        // A view may have other bytes than those of true and false.
        array = numpy.call_method1("not_equal", (array.call_method1("view", ("uint8",))?, 0))?;
    }
    let array = numpy.call_method1("ascontiguousarray", (array,))?;
    of_dtype!(
        dtype,
        T => {
            let array = array.cast::<PyArrayDyn<T>>().map_err(PyErr::from)?.readonly();
            context.writes.take::<T>(place)?.copy_from_slice(array.as_slice()?);
        },
        return Err(no_such_dtype().into())
    );
    Ok(())
}

fn casting(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyDict>> {
    let keywords = pyo3::types::PyDict::new(py);
    keywords.set_item("casting", "same_kind")?;
    Ok(keywords)
}

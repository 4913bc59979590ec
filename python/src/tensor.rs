//! The class `Tensor`.

use std::sync::Arc;

use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use streamvm::ep::OpClass;
use streamvm::{Axes, DType, Error, Op, Params, Tensor};

use crate::axes::{self, AxesArgument};
use crate::callbacks::Callback;
use crate::dtypes::{AnyDType, PyDType, is_integer, is_signed};
use crate::engine::{Engine, Number, PyVm, place_named, seconds};
use crate::operators::{binary, chosen, converted, in_place, of_dtype};
use crate::{dlpack, elements, errors, indexing, waiting};

/// A tensor: elements of one dtype in a shape, on a device. Calls return at once, and the engine computes the elements; reading them waits.
///
/// Views share memory with what they are views of, as in NumPy. Any thread may use a tensor and drop it. The names are those of the Python array API standard.
#[pyclass(name = "Tensor", module = "streamvm", frozen, weakref)]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
    pub(crate) engine: Arc<Engine>,
}

impl PyTensor {
    pub(crate) fn new(engine: &Arc<Engine>, tensor: Tensor) -> PyTensor {
        PyTensor { tensor, engine: engine.clone() }
    }

    /// A tensor of the same engine.
    pub(crate) fn like(&self, tensor: Tensor) -> PyTensor {
        PyTensor::new(&self.engine, tensor)
    }

    fn made(&self, py: Python<'_>, make: impl Fn(&Tensor) -> Result<Tensor, Error> + Sync) -> PyResult<PyTensor> {
        Ok(self.like(waiting::call(py, || make(&self.tensor))?))
    }

    fn view(&self, py: Python<'_>, make: impl FnOnce(&Tensor) -> Result<Tensor, Error>) -> PyResult<PyTensor> {
        Ok(self.like(waiting::at_once(py, || make(&self.tensor))?))
    }

    fn only<T: streamvm::Element>(&self, py: Python<'_>, dtype: DType) -> PyResult<T> {
        if self.tensor.numel() != 1 {
            let text =
                format!("only a tensor of one element is a number, and this has the shape {:?}", self.tensor.dims());
            return Err(errors::usage(py, &text));
        }
        let tensor = converted(py, &self.tensor, dtype)?;
        let read = waiting::call(py, || tensor.start_read::<T>())?;
        waiting::call(py, || read.wait())?;
        waiting::at_once(py, || read.into_elements()).map(|elements| elements[0])
    }
}

#[pymethods]
impl PyTensor {
    /// Functions of NumPy refuse a tensor: each would wait for it, and give an array.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }

    /// The sizes of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.tensor.dims())
    }

    /// The number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.tensor.rank()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.tensor.numel()
    }

    /// The bytes of the elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.numel() * self.tensor.dtype().size()
    }

    /// The element type.
    #[getter]
    fn dtype(&self) -> PyDType {
        PyDType(self.tensor.dtype())
    }

    /// The name of the device, such as "cpu:0", or "host".
    #[getter]
    fn device(&self) -> String {
        self.tensor.place().to_string()
    }

    /// The matrix with its axes exchanged, a view. The tensor has two axes.
    #[getter(T)]
    fn transposed(&self, py: Python<'_>) -> PyResult<PyTensor> {
        if self.tensor.rank() != 2 {
            return Err(PyValueError::new_err(format!(
                "T is of matrices, and the tensor has {} axes; use mT or permute_dims",
                self.tensor.rank()
            )));
        }
        self.view(py, Tensor::t)
    }

    /// The last two axes exchanged, a view.
    #[getter(mT)]
    fn matrix_transposed(&self, py: Python<'_>) -> PyResult<PyTensor> {
        let rank = self.tensor.rank();
        if rank < 2 {
            return Err(PyValueError::new_err(format!("mT is of matrices, and the tensor has {rank} axes")));
        }
        self.view(py, |tensor| tensor.transpose(rank - 2, rank - 1))
    }

    /// Whether what was issued last for these elements has passed, failed or not. Never blocks.
    fn is_ready(&self) -> bool {
        self.tensor.is_ready()
    }

    /// Blocks until the elements are written, at most `timeout` seconds. Raises the failure of what should have written them.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        waiting::call_within(py, seconds(timeout)?, || self.tensor.wait())
    }

    /// Calls `callback` with None, or with the exception of a failure, once the elements are written: on another thread.
    fn _on_passed(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        waiting::call(py, || {
            // A try that gives up has dropped its callback.
            let callback = Callback::new(Python::attach(|py| callback.clone_ref(py)));
            self.tensor.on_passed(move |outcome| callback.call(outcome))
        })
    }

    /// A NumPy array with a copy of the elements. Waits for them.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        elements::array_of(py, &self.tensor)
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err(
                "an array of a tensor is a copy: the engine writes a tensor after the call that says so",
            ));
        }
        let array = self.numpy(py)?;
        match dtype {
            None => Ok(array),
            Some(dtype) => {
                let keywords = PyDict::new(py);
                keywords.set_item("copy", false)?;
                array.call_method("astype", (dtype,), Some(&keywords))
            }
        }
    }

    /// The elements for another array library, which may only read them: in the memory of the tensor, which nothing can change while the library has them. A copy for `copy=True`, of a tensor that is
    /// not in memory of the CPU, and for a library that does not know version 1 of DLPack. Waits for the elements.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::capsule(py, self, &dlpack::Wanted { stream, max_version, device: dl_device, copy })
    }

    /// The CPU, in the numbers of DLPack.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// The only element, as a number of Python. Waits for it.
    fn item(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self.tensor.dtype() {
            DType::Bool => self.only::<bool>(py, DType::Bool)?.into_pyobject(py)?.to_owned().into_any().unbind(),
            dtype if dtype.is_float() => self.only::<f64>(py, DType::F64)?.into_pyobject(py)?.into_any().unbind(),
            DType::U64 => self.only::<u64>(py, DType::U64)?.into_pyobject(py)?.into_any().unbind(),
            _ => self.only::<i64>(py, DType::I64)?.into_pyobject(py)?.into_any().unbind(),
        })
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        match self.tensor.dtype() {
            DType::Bool => self.only(py, DType::Bool),
            _ => Ok(self.only::<f64>(py, DType::F64)? != 0.0),
        }
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        py.import("builtins")?.getattr("int")?.call1((self.item(py)?,)).map(Bound::unbind)
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.only(py, DType::F64)
    }

    fn __complex__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        py.import("builtins")?.getattr("complex")?.call1((self.item(py)?,)).map(Bound::unbind)
    }

    fn __index__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if !is_integer(self.tensor.dtype()) {
            return Err(PyTypeError::new_err("only a tensor of integers can be an index"));
        }
        self.item(py)
    }

    fn __len__(&self) -> PyResult<usize> {
        self.tensor.dims().first().copied().ok_or_else(|| PyTypeError::new_err("a tensor without axes has no length"))
    }

    fn __iter__<'py>(slf: Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
        if slf.get().tensor.rank() == 0 {
            return Err(PyTypeError::new_err("a tensor without axes has no parts to go through"));
        }
        slf.py().import("streamvm._manipulation")?.call_method1("unstack", (slf,))?.call_method0("__iter__")
    }

    fn __format__(slf: Bound<'_, PyTensor>, how: &str) -> PyResult<String> {
        let shown = if how.is_empty() { slf.str()?.into_any() } else { slf.get().item(slf.py())?.into_bound(slf.py()) };
        slf.py().import("builtins")?.call_method1("format", (shown, how))?.extract()
    }

    fn __await__<'py>(slf: Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("streamvm._asyncio")?.call_method1("passed", (slf,))?;
        waiting.call_method0("__await__")
    }

    fn __repr__(slf: Bound<'_, PyTensor>) -> PyResult<String> {
        slf.py().import("streamvm._show")?.call_method1("text", (slf,))?.extract()
    }

    /// A copy by value, for `pickle`.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let make = py.import("streamvm._creation")?.getattr("unpickled")?;
        let dtype = self.tensor.dtype();
        let numpy_has_it = if dtype == DType::BF16 { DType::F32 } else { dtype };
        let array = elements::array_of(py, &converted(py, &self.tensor, numpy_has_it)?)?;
        Ok((make, (array, PyDType(dtype), self.device())).into_pyobject(py)?.into_any())
    }

    #[pyo3(signature = (*, api_version = None))]
    fn __array_namespace__<'py>(&self, py: Python<'py>, api_version: Option<&str>) -> PyResult<Bound<'py, PyModule>> {
        if let Some(version) =
            api_version.filter(|version| !["2021.12", "2022.12", "2023.12", "2024.12"].contains(version))
        {
            return Err(PyValueError::new_err(format!(
                "there is no version {version:?} of the array API standard here; the latest is 2024.12"
            )));
        }
        py.import("streamvm")
    }

    /// The tensor on another device, or this one if it is there. `device` is a name such as "cuda:0".
    #[pyo3(signature = (device, /, *, stream = None))]
    fn to_device(slf: Bound<'_, PyTensor>, device: &str, stream: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyTensor>> {
        let py = slf.py();
        if stream.is_some() {
            return Err(PyNotImplementedError::new_err("the engine chooses the stream of a copy; leave `stream` out"));
        }
        let place = place_named(py, device)?;
        if slf.get().tensor.place() == place {
            return Ok(slf.unbind());
        }
        Py::new(py, slf.get().made(py, |tensor| tensor.to(place))?)
    }

    fn __getitem__<'py>(slf: &Bound<'py, PyTensor>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match indexing::view(&slf.get().tensor, key)? {
            Some(view) => Ok(slf.get().like(view).into_pyobject(slf.py())?.into_any()),
            None => slf.py().import("streamvm._indexing")?.call_method1("taken", (slf, key)),
        }
    }

    fn __setitem__(slf: &Bound<'_, PyTensor>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        slf.py().import("streamvm._indexing")?.call_method1("set_item", (slf, key, value)).map(drop)
    }

    // Operators.

    fn __neg__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        if is_integer(self.tensor.dtype()) && !is_signed(self.tensor.dtype()) {
            // It wraps.
            return self.made(py, |tensor| tensor.op(Op::Sub, &[], Params::default().with_number(0, 0)));
        }
        self._unary(py, "neg")
    }

    fn __pos__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self._copy(py)
    }

    fn __abs__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        if is_integer(self.tensor.dtype()) && !is_signed(self.tensor.dtype()) {
            self._copy(py)
        } else {
            self._unary(py, "abs")
        }
    }

    fn __invert__(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self._unary(py, "bit_not")
    }

    fn __add__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Add, self, other, false)
    }
    fn __radd__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Add, self, other, true)
    }
    fn __iadd__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Add, self, other)
    }
    fn __sub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Sub, self, other, false)
    }
    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Sub, self, other, true)
    }
    fn __isub__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Sub, self, other)
    }
    fn __mul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Mul, self, other, false)
    }
    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Mul, self, other, true)
    }
    fn __imul__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Mul, self, other)
    }
    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Div, self, other, false)
    }
    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Div, self, other, true)
    }
    fn __itruediv__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Div, self, other)
    }
    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::FloorDiv, self, other, false)
    }
    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::FloorDiv, self, other, true)
    }
    fn __ifloordiv__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::FloorDiv, self, other)
    }
    fn __mod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Remainder, self, other, false)
    }
    fn __rmod__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Remainder, self, other, true)
    }
    fn __imod__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Remainder, self, other)
    }
    fn __pow__(&self, other: &Bound<'_, PyAny>, modulus: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        refuse_modulus(modulus)?;
        binary(other.py(), Op::Pow, self, other, false)
    }
    fn __rpow__(&self, other: &Bound<'_, PyAny>, modulus: Option<Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        refuse_modulus(modulus)?;
        binary(other.py(), Op::Pow, self, other, true)
    }
    fn __ipow__(&self, other: &Bound<'_, PyAny>, modulus: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        refuse_modulus(modulus)?;
        in_place(other.py(), Op::Pow, self, other)
    }
    fn __and__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::BitAnd, self, other, false)
    }
    fn __rand__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::BitAnd, self, other, true)
    }
    fn __iand__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::BitAnd, self, other)
    }
    fn __or__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::BitOr, self, other, false)
    }
    fn __ror__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::BitOr, self, other, true)
    }
    fn __ior__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::BitOr, self, other)
    }
    fn __xor__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::BitXor, self, other, false)
    }
    fn __rxor__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::BitXor, self, other, true)
    }
    fn __ixor__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::BitXor, self, other)
    }
    fn __lshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Shl, self, other, false)
    }
    fn __rlshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Shl, self, other, true)
    }
    fn __ilshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Shl, self, other)
    }
    fn __rshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Shr, self, other, false)
    }
    fn __rrshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        binary(other.py(), Op::Shr, self, other, true)
    }
    fn __irshift__(&self, other: &Bound<'_, PyAny>) -> PyResult<()> {
        in_place(other.py(), Op::Shr, self, other)
    }
    fn __matmul__(slf: Bound<'_, PyTensor>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        match other.cast::<PyTensor>() {
            Ok(_) => Ok(py.import("streamvm._linalg")?.call_method1("matmul", (slf, other))?.unbind()),
            Err(_) => Ok(py.NotImplemented()),
        }
    }
    fn __richcmp__(&self, other: &Bound<'_, PyAny>, compare: CompareOp) -> PyResult<Py<PyAny>> {
        let op = match compare {
            CompareOp::Lt => Op::Lt,
            CompareOp::Le => Op::Le,
            CompareOp::Eq => Op::Eq,
            CompareOp::Ne => Op::Ne,
            CompareOp::Gt => Op::Gt,
            CompareOp::Ge => Op::Ge,
        };
        binary(other.py(), op, self, other, false)
    }

    // The functions of the package call these.

    /// An op over one tensor, by its name.
    fn _unary(&self, py: Python<'_>, op: &str) -> PyResult<PyTensor> {
        let op = of_dtype(op_named(py, op)?, self.tensor.dtype());
        self.made(py, |tensor| tensor.op(op, &[], Params::default()))
    }

    /// An op over two tensors of a common dtype, or over this one and a number, by its name.
    #[pyo3(signature = (op, other, reflected = false))]
    fn _binary(&self, py: Python<'_>, op: &str, other: &Bound<'_, PyAny>, reflected: bool) -> PyResult<Py<PyAny>> {
        binary(py, op_named(py, op)?, self, other, reflected)
    }

    /// An op over several tensors as they are.
    fn _over(&self, py: Python<'_>, op: &str, others: Vec<Py<PyTensor>>) -> PyResult<PyTensor> {
        let op = op_named(py, op)?;
        let others: Vec<&Tensor> = others.iter().map(|it| &it.get().tensor).collect();
        self.made(py, |tensor| tensor.op(op, &others, Params::default()))
    }

    /// `yes` where this tensor is true, and `no` elsewhere: tensors of a common dtype, or a tensor and a number.
    fn _where(&self, py: Python<'_>, yes: &Bound<'_, PyAny>, no: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        Ok(self.like(chosen(py, &self.tensor, yes, no)?))
    }

    /// A reduction by its name: over some axes, or all.
    fn _reduce(&self, py: Python<'_>, op: &str, axis: Option<AxesArgument>, keepdims: bool) -> PyResult<PyTensor> {
        let op = op_named(py, op)?;
        let axes = axes::axes(axis, self.tensor.rank())?;
        self.made(py, |tensor| axes::reduced(tensor, op, &axes, keepdims))
    }

    /// An op along one axis, by its name.
    #[pyo3(signature = (op, axis, descending = false))]
    fn _along(&self, py: Python<'_>, op: &str, axis: isize, descending: bool) -> PyResult<PyTensor> {
        let op = op_named(py, op)?;
        let axis = axes::axis(axis, self.tensor.rank())?;
        self.made(py, |tensor| {
            let axes = Axes::new(&[axis]).map_err(streamvm::BuildError::from)?;
            let params =
                if op.class() == OpClass::ArgSort { Params::sorted(axes, descending) } else { Params::over(axes) };
            tensor.op(op, &[], params)
        })
    }

    fn _flip(&self, py: Python<'_>, axis: Option<AxesArgument>) -> PyResult<PyTensor> {
        let axes = axes::axes(axis, self.tensor.rank())?;
        if axes.is_empty() {
            return self._copy(py);
        }
        self.made(py, |tensor| tensor.flip(&axes))
    }

    /// Elements along an axis by indices, in a shape as the indices have it.
    fn _take(&self, py: Python<'_>, indices: &PyTensor, axis: isize) -> PyResult<PyTensor> {
        let axis = axes::axis(axis, self.tensor.rank())?;
        self.made(py, |tensor| axes::taken(tensor, &indices.tensor, axis))
    }

    fn _take_along_axis(&self, py: Python<'_>, indices: &PyTensor, axis: isize) -> PyResult<PyTensor> {
        let axis = axes::axis(axis, self.tensor.rank())?;
        self.made(py, |tensor| tensor.take_along_axis(&indices.tensor, axis))
    }

    /// The tensor with elements of the source at some places of an axis.
    fn _scatter(&self, py: Python<'_>, indices: &PyTensor, source: &PyTensor, axis: isize) -> PyResult<PyTensor> {
        let axis = axes::axis(axis, self.tensor.rank())?;
        self.made(py, |tensor| tensor.scatter(&indices.tensor, &source.tensor, axis))
    }

    fn _triangle(&self, py: Python<'_>, upper: bool, diagonal: i64) -> PyResult<PyTensor> {
        self.made(py, |tensor| if upper { tensor.triu(diagonal) } else { tensor.tril(diagonal) })
    }

    fn _cast(&self, py: Python<'_>, dtype: AnyDType) -> PyResult<PyTensor> {
        self.made(py, |tensor| tensor.cast(dtype.0))
    }

    fn _copy(&self, py: Python<'_>) -> PyResult<PyTensor> {
        self.made(py, |tensor| tensor.to(tensor.place()))
    }

    fn _reshape(&self, py: Python<'_>, shape: Vec<usize>) -> PyResult<PyTensor> {
        self.made(py, |tensor| tensor.reshape(&shape))
    }

    /// The view in this shape; None if there is none.
    fn _try_reshape(&self, py: Python<'_>, shape: Vec<usize>) -> PyResult<Option<PyTensor>> {
        Ok(waiting::at_once(py, || self.tensor.try_reshape(&shape))?.map(|view| self.like(view)))
    }

    fn _permute(&self, py: Python<'_>, axes: Vec<isize>) -> PyResult<PyTensor> {
        let rank = self.tensor.rank();
        let axes = axes.into_iter().map(|axis| axes::axis(axis, rank)).collect::<PyResult<Vec<usize>>>()?;
        self.view(py, |tensor| tensor.permute(&axes))
    }

    fn _broadcast_to(&self, py: Python<'_>, shape: Vec<usize>) -> PyResult<PyTensor> {
        self.view(py, |tensor| tensor.broadcast_to(&shape))
    }

    fn _roll(&self, py: Python<'_>, shift: i64, axis: isize) -> PyResult<PyTensor> {
        let axis = axes::axis(axis, self.tensor.rank())?;
        self.made(py, |tensor| tensor.roll(shift, axis))
    }

    fn _repeat(&self, py: Python<'_>, counts: Vec<usize>) -> PyResult<PyTensor> {
        self.made(py, |tensor| tensor.repeat(&counts))
    }

    /// A tensor like this one with a number everywhere; in a recording, a step of it.
    fn _filled(&self, py: Python<'_>, value: Number) -> PyResult<PyTensor> {
        self.made(py, |tensor| {
            let filled = tensor.zeros_like()?;
            filled.fill(value.scalar())?;
            Ok(filled)
        })
    }

    fn _fill(&self, py: Python<'_>, value: Number) -> PyResult<()> {
        waiting::call(py, || self.tensor.fill(value.scalar()))
    }

    /// Overwrites the elements by those of a tensor of this shape and dtype, wherever it is.
    fn _assign(&self, py: Python<'_>, source: &PyTensor) -> PyResult<()> {
        waiting::call(py, || {
            // Of a part of itself a copy is read.
            let source = &source.tensor;
            if source.shares_storage(&self.tensor) && source.layout() == self.tensor.layout() {
                return Ok(());
            }
            if source.overlaps(&self.tensor) {
                self.tensor.copy_from(&source.to(source.place())?)
            } else {
                self.tensor.copy_from(source)
            }
        })
    }

    /// Device, dtype and shape: a program serves each call whose tensors have the same.
    fn _signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok((self.device(), self.dtype().name(), self.shape(py)?).into_pyobject(py)?.into_any())
    }

    /// The engine of the tensor.
    #[getter]
    fn _vm(&self) -> PyVm {
        PyVm { engine: self.engine.clone() }
    }
}

fn refuse_modulus(modulus: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    match modulus.filter(|modulus| !modulus.is_none()) {
        Some(_) => Err(PyTypeError::new_err("a power of tensors has no modulus; take the remainder of it")),
        None => Ok(()),
    }
}

fn op_named(py: Python<'_>, name: &str) -> PyResult<Op> {
    name.parse().map_err(|_| errors::usage(py, &format!("there is no op {name:?}")))
}

fn tensors_of(tensors: &[Py<PyTensor>]) -> Option<(&PyTensor, Vec<&Tensor>)> {
    Some((tensors.first()?.get(), tensors.iter().map(|it| &it.get().tensor).collect()))
}

/// Tensors of one dtype one after the other on an axis.
#[pyfunction]
pub(crate) fn concat(py: Python<'_>, tensors: Vec<Py<PyTensor>>, axis: usize) -> PyResult<PyTensor> {
    let (first, all) =
        tensors_of(&tensors).ok_or_else(|| PyValueError::new_err("there is no tensor to concatenate"))?;
    Ok(first.like(waiting::call(py, || Tensor::cat(&all, axis))?))
}

/// Tensors of one dtype and shape on a new axis.
#[pyfunction]
pub(crate) fn stack(py: Python<'_>, tensors: Vec<Py<PyTensor>>, axis: usize) -> PyResult<PyTensor> {
    let (first, all) = tensors_of(&tensors).ok_or_else(|| PyValueError::new_err("there is no tensor to stack"))?;
    Ok(first.like(waiting::call(py, || Tensor::stack(&all, axis))?))
}

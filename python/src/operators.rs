//! Operators of tensors, beside tensors and numbers of Python.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
use streamvm::{DType, Op, Params, Tensor};

use crate::dtypes::{PyDType, common_or_raise, is_integer};
use crate::engine::Number;
use crate::tensor::PyTensor;
use crate::waiting;

/// The operand beside a tensor.
pub(crate) enum Beside<'a> {
    Tensor(&'a PyTensor),
    Number(Number),
}

/// A number of NumPy as a number of Python; `None` for anything else, and for those that are numbers of Python, too.
fn of_numpy<'py>(given: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if given.is_instance_of::<PyInt>() || given.is_instance_of::<PyFloat>() {
        return Ok(None);
    }
    static NUMBER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let number = NUMBER.import(given.py(), "numpy", "generic")?;
    if given.is_instance(number)? { given.call_method0("item").map(Some) } else { Ok(None) }
}

/// Reads the operand beside a tensor of this dtype; `None` if it is neither a tensor nor a number.
///
/// # Errors
/// `TypeError`: the number is of another kind than the dtype. An integer counts as a float, too.
fn beside<'a>(given: &'a Bound<'_, PyAny>, dtype: DType) -> PyResult<Option<Beside<'a>>> {
    if let Ok(tensor) = given.cast::<PyTensor>() {
        return Ok(Some(Beside::Tensor(tensor.get())));
    }
    if let Some(number) = of_numpy(given)? {
        return match beside(&number, dtype)? {
            Some(Beside::Number(number)) => Ok(Some(Beside::Number(number))),
            _ => Ok(None),
        };
    }
    let fits = if given.is_instance_of::<PyBool>() {
        dtype == DType::Bool
    } else if given.is_instance_of::<PyInt>() {
        dtype != DType::Bool
    } else if given.is_instance_of::<PyFloat>() {
        dtype.is_float()
    } else {
        return Ok(None);
    };
    if !fits {
        let (kind, name) = (given.get_type().name()?, PyDType(dtype).name());
        return Err(PyTypeError::new_err(format!(
            "a tensor of {name} cannot stand beside a number of type {kind}; convert the tensor first, as with streamvm.astype(x, streamvm.float32)"
        )));
    }
    Ok(Some(Beside::Number(given.extract()?)))
}

/// `yes` where the condition is true, and `no` elsewhere: a tensor and a tensor or a number.
///
/// # Errors
/// `TypeError`: none of both is a tensor, or they have no common dtype.
pub(crate) fn chosen(
    py: Python<'_>,
    condition: &Tensor,
    yes: &Bound<'_, PyAny>,
    no: &Bound<'_, PyAny>,
) -> PyResult<Tensor> {
    let tensor_of = |given: &Bound<'_, PyAny>| given.cast::<PyTensor>().ok().map(|it| it.get().tensor.clone());
    let none = || {
        PyTypeError::new_err(
            "one of the last two arguments of where must be a tensor, and the other one a tensor or a number",
        )
    };
    let (tensors, params) = match (tensor_of(yes), tensor_of(no)) {
        (Some(yes), Some(no)) => {
            let dtype = common_or_raise(yes.dtype(), no.dtype())?;
            (vec![converted(py, &yes, dtype)?, converted(py, &no, dtype)?], Params::default())
        }
        (Some(tensor), None) | (None, Some(tensor)) => {
            let (place, given) = if yes.is_instance_of::<PyTensor>() { (2, no) } else { (1, yes) };
            let Some(Beside::Number(number)) = beside(given, tensor.dtype())? else { return Err(none()) };
            (vec![tensor], Params::default().with_number(place, number.scalar()))
        }
        (None, None) => return Err(none()),
    };
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    waiting::call(py, || condition.op(Op::Where, &tensors, params))
}

/// The tensor in this dtype.
pub(crate) fn converted(py: Python<'_>, tensor: &Tensor, dtype: DType) -> PyResult<Tensor> {
    if tensor.dtype() == dtype { Ok(tensor.clone()) } else { waiting::call(py, || tensor.cast(dtype)) }
}

/// The op in the place of one over numbers, where the tensors have truth values.
pub(crate) fn of_dtype(op: Op, dtype: DType) -> Op {
    match (op, dtype) {
        (Op::BitAnd, DType::Bool) => Op::And,
        (Op::BitOr, DType::Bool) => Op::Or,
        (Op::BitXor, DType::Bool) => Op::Xor,
        (Op::BitNot, DType::Bool) => Op::Not,
        (op, _) => op,
    }
}

/// # Errors
/// `TypeError`: the op is for floats alone.
fn check(op: Op, dtype: DType) -> PyResult<()> {
    if op == Op::Div && is_integer(dtype) {
        return Err(PyTypeError::new_err(
            "a true division takes floats; use // or convert the tensors first, as with streamvm.astype(x, streamvm.float32)",
        ));
    }
    Ok(())
}

/// # Errors
/// `TypeError`: it is an array or a list, which NumPy or Python would take in ways that surprise.
fn refuse_arrays(given: &Bound<'_, PyAny>) -> PyResult<()> {
    let is_list = given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>();
    if is_list || given.hasattr(pyo3::intern!(given.py(), "__array__"))? {
        let kind = given.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "a tensor stands beside tensors and numbers, and not beside a {kind}; make a tensor of it by asarray"
        )));
    }
    Ok(())
}

/// `tensor op given`, or `given op tensor` if `reflected`; `NotImplemented` for what is neither a tensor nor a number.
pub(crate) fn binary(
    py: Python<'_>,
    op: Op,
    tensor: &PyTensor,
    given: &Bound<'_, PyAny>,
    reflected: bool,
) -> PyResult<Py<PyAny>> {
    let x = &tensor.tensor;
    let result = match beside(given, x.dtype())? {
        None => {
            refuse_arrays(given)?;
            return Ok(py.NotImplemented());
        }
        Some(Beside::Number(number)) => {
            let op = of_dtype(op, x.dtype());
            check(op, x.dtype())?;
            let params = Params::default().with_number(usize::from(!reflected), number.scalar());
            waiting::call(py, || x.op(op, &[], params))?
        }
        Some(Beside::Tensor(other)) => {
            let dtype = common_or_raise(x.dtype(), other.tensor.dtype())?;
            let op = of_dtype(op, dtype);
            check(op, dtype)?;
            let (x, y) = (converted(py, x, dtype)?, converted(py, &other.tensor, dtype)?);
            waiting::call(py, || x.op(op, &[&y], Params::default()))?
        }
    };
    Ok(tensor.like(result).into_pyobject(py)?.into_any().unbind())
}

/// `tensor op= given`: writes the tensor, which may be a view, in its dtype and shape.
pub(crate) fn in_place(py: Python<'_>, op: Op, tensor: &PyTensor, given: &Bound<'_, PyAny>) -> PyResult<()> {
    let x = &tensor.tensor;
    let Some(given) = beside(given, x.dtype())? else {
        return Err(PyTypeError::new_err(format!("a tensor cannot be changed by a {}", given.get_type().name()?)));
    };
    let op = of_dtype(op, x.dtype());
    check(op, x.dtype())?;
    let other = match given {
        Beside::Number(number) => {
            let number = number.scalar();
            return waiting::call(py, || match op {
                Op::Add => x.add_assign(number),
                Op::Sub => x.sub_assign(number),
                Op::Mul => x.mul_assign(number),
                Op::Div => x.div_assign(number),
                op => x.copy_from(&x.op(op, &[], Params::default().with_number(1, number))?),
            });
        }
        Beside::Tensor(other) => other,
    };
    let dtype = common_or_raise(x.dtype(), other.tensor.dtype())?;
    if dtype != x.dtype() {
        let [from, to] = [dtype, x.dtype()].map(|it| PyDType(it).name());
        return Err(PyTypeError::new_err(format!(
            "the result has the dtype {from}, and the tensor that is changed has {to}"
        )));
    }
    let other = &converted(py, &other.tensor, dtype)?;
    // The op would write what it still reads.
    let is_shifted = other.overlaps(x) && other.layout() != x.layout();
    waiting::call(py, || match op {
        Op::Add if !is_shifted => x.add_assign(other),
        Op::Sub if !is_shifted => x.sub_assign(other),
        Op::Mul if !is_shifted => x.mul_assign(other),
        Op::Div if !is_shifted => x.div_assign(other),
        op => x.copy_from(&x.op(op, &[other], Params::default())?),
    })
}

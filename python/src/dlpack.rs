//! DLPack: the memory of tensors for other array libraries, without a copy where they may only read it.
//!
//! The engine refuses to write memory that it has lent ([`streamvm::Lent`]). A capsule owns a struct of the format, with what it keeps, until a library takes it and calls its deleter.
#![allow(unsafe_code, reason = "a capsule hands out addresses, and other libraries free what it owns")]

use std::ffi::{CStr, c_void};
use std::time::Duration;

use dlpk::DLPackVersion;
use dlpk::sys::{
    DLDataType, DLDataTypeCode, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_IS_COPIED,
    DLPACK_FLAG_BITMASK_READ_ONLY, DLTensor,
};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use streamvm::{DType, DeviceId, Lent, Place, Tensor, TimeLimit};

use crate::tensor::PyTensor;
use crate::waiting;

/// A device as the format tells it: a kind, and a number.
pub(crate) type Number = (i32, i32);

/// Tensors are given away in memory of the CPU. A library may drop memory of a GPU while its commands still read it, and nothing tells the engine when these have passed.
pub(crate) const CPU: Number = (1, 0);

/// The arguments of `__dlpack__`, by which a library asks.
pub(crate) struct Wanted {
    pub(crate) stream: Option<i64>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<Number>,
    pub(crate) copy: Option<bool>,
}

/// A capsule for a tensor. Waits until it is written.
///
/// # Errors
/// `BufferError`: there is no such device or stream, or only a copy can be given; those of waits.
pub(crate) fn capsule<'py>(py: Python<'py>, x: &PyTensor, wanted: &Wanted) -> PyResult<Bound<'py, PyAny>> {
    let refused = |text: String| Err(PyBufferError::new_err(text));
    let place = x.tensor.place();
    if let Some(other) = wanted.device.filter(|device| *device != CPU) {
        return refused(format!(
            "a tensor is given to other libraries in memory of the CPU, which is the device {CPU:?} of DLPack, and not on {other:?}"
        ));
    }
    if wanted.stream.is_some() {
        return refused("memory of the CPU has no stream; leave `stream` out".to_owned());
    }
    // Earlier versions cannot say that memory is only for reading.
    let is_told = wanted.max_version.is_some_and(|(major, _)| major >= 1);
    let is_here = place.device().is_none_or(|device| device.kind.info().host_memory);
    if is_told && is_here && wanted.copy != Some(true) {
        return made(py, lent(py, x, &x.tensor)?, true, DLPACK_FLAG_BITMASK_READ_ONLY);
    }
    if wanted.copy == Some(false) {
        let why = if is_here {
            "a library that does not know version 1 of DLPack cannot be told that memory is only for reading"
        } else {
            "the tensor is not in memory of the CPU"
        };
        return refused(format!("{why}, and gets a copy; leave `copy` out"));
    }
    let place = if is_here { place } else { Place::Device(DeviceId::cpu(0)) };
    let copy = waiting::call(py, || x.tensor.to(place))?;
    made(py, lent(py, x, &copy)?, is_told, DLPACK_FLAG_BITMASK_IS_COPIED)
}

/// Lends the memory of a tensor of the engine of `x`, and waits until it is written.
fn lent(py: Python<'_>, x: &PyTensor, tensor: &Tensor) -> PyResult<Lent> {
    let lent = waiting::at_once(py, || x.engine.vm().lend(tensor))?;
    // Mostly it is written, and then nothing is left to wait for without the interpreter's lock.
    if TimeLimit(Duration::ZERO).run(|| lent.wait()).is_err() {
        waiting::call(py, || lent.wait().map(drop))?;
    }
    Ok(lent)
}

pub(crate) fn dtype(dtype: DType) -> DLDataType {
    let code = match dtype {
        DType::Bool => DLDataTypeCode::kDLBool,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => DLDataTypeCode::kDLInt,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => DLDataTypeCode::kDLUInt,
        DType::F16 | DType::F32 | DType::F64 => DLDataTypeCode::kDLFloat,
        DType::BF16 => DLDataTypeCode::kDLBfloat,
    };
    DLDataType { code, bits: 8 * dtype.size() as u8, lanes: 1 }
}

/// A capsule's struct points to this, and owns it.
struct Kept {
    /// Sizes, then strides.
    axes: Vec<i64>,
    _lent: Lent,
}

/// A struct of the format, in a box that its deleter frees.
trait Managed: Sized {
    /// The name of a capsule that nobody has taken.
    const NAME: &'static CStr;

    fn new(tensor: DLTensor, kept: *mut c_void, flags: u64) -> Self;
    fn kept(&self) -> *mut c_void;
}

impl Managed for DLManagedTensorVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, flags: u64) -> Self {
        // The first version with all that is used here.
        let version = DLPackVersion { major: 1, minor: 0 };
        DLManagedTensorVersioned { version, manager_ctx, deleter: Some(freed::<Self>), flags, dl_tensor }
    }

    fn kept(&self) -> *mut c_void {
        self.manager_ctx
    }
}

impl Managed for DLManagedTensor {
    const NAME: &'static CStr = c"dltensor";

    fn new(dl_tensor: DLTensor, manager_ctx: *mut c_void, _: u64) -> Self {
        DLManagedTensor { dl_tensor, manager_ctx, deleter: Some(freed::<Self>) }
    }

    fn kept(&self) -> *mut c_void {
        self.manager_ctx
    }
}

/// Frees a struct and what it keeps. Any thread may call it, with or without the interpreter's lock.
///
/// # Safety
/// `managed` comes from [`made_as`], and this is called once.
unsafe extern "C" fn freed<M: Managed>(managed: *mut M) {
    // SAFETY: both were boxes, and nobody uses them any more.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(managed.kept().cast::<Kept>()) });
}

/// Frees what a capsule owns that nobody has taken.
///
/// # Safety
/// The interpreter calls it, for a capsule of [`made_as`].
unsafe extern "C" fn dropped<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive. A library that takes a capsule renames it.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 1 {
        // SAFETY: it has this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
        // SAFETY: the capsule owns it.
        unsafe { freed::<M>(managed.cast()) };
    }
}

fn made(py: Python<'_>, lent: Lent, versioned: bool, flags: u64) -> PyResult<Bound<'_, PyAny>> {
    match versioned {
        true => made_as::<DLManagedTensorVersioned>(py, lent, flags),
        false => made_as::<DLManagedTensor>(py, lent, flags),
    }
}

/// A capsule of memory that is lent and written.
fn made_as<M: Managed>(py: Python<'_>, lent: Lent, flags: u64) -> PyResult<Bound<'_, PyAny>> {
    let tensor = lent.tensor();
    let (layout, rank, dtype) = (tensor.layout(), tensor.rank(), dtype(tensor.dtype()));
    let axes = tensor.dims().iter().chain(layout.strides()).map(|axis| *axis as i64).collect();
    let address = waiting::at_once(py, || lent.wait())?;
    let data = if tensor.numel() == 0 { std::ptr::null_mut() } else { address.cast_mut().cast() };
    let device = DLDevice::cpu();
    let mut kept = Box::new(Kept { axes, _lent: lent });
    let shape = kept.axes.as_mut_ptr();
    let strides = shape.wrapping_add(rank);
    let tensor = DLTensor { data, device, ndim: rank as i32, dtype, shape, strides, byte_offset: 0 };
    let managed = Box::into_raw(Box::new(M::new(tensor, Box::into_raw(kept).cast(), flags)));
    // SAFETY: the name is a constant, and the capsule owns the struct until somebody takes it.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(dropped::<M>)) };
    // SAFETY: a new reference, or null with an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    if capsule.is_err() {
        // SAFETY: no capsule owns it.
        unsafe { freed::<M>(managed) };
    }
    capsule
}

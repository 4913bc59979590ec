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
use streamvm::{DType, DeviceId, DeviceKind, Lent, Place, Tensor, TimeLimit};

use crate::tensor::PyTensor;
use crate::waiting;

/// A device as the format tells it: a kind, and a number.
type Number = (i32, i32);

const CPU: Number = (1, 0);
const CUDA: i32 = 2;

/// The device whose memory a tensor is in. A tensor of any other is given away in that of the CPU.
pub(crate) fn device(tensor: &Tensor) -> Number {
    match tensor.place() {
        Place::Device(DeviceId { kind: DeviceKind::CUDA, index }) => (CUDA, index as i32),
        _ => CPU,
    }
}

/// What a library asks for: the arguments of `__dlpack__`.
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
    let here = device(&x.tensor);
    let there = wanted.device.unwrap_or(here);
    let refused = |text: String| Err(PyBufferError::new_err(text));
    if there != here && there != CPU {
        return refused(format!(
            "the tensor is on {}, and is given away there or on the CPU, and not on the device {there:?} of DLPack",
            x.tensor.place()
        ));
    }
    match (there, wanted.stream) {
        (CPU, Some(_)) => return refused("memory of the CPU has no stream; leave `stream` out".to_owned()),
        ((CUDA, _), Some(0)) => {
            return refused(
                "stream 0 is either of two of CUDA: name the legacy default stream 1, and that of the thread 2"
                    .to_owned(),
            );
        }
        // The host has seen that all is written, so any stream may read.
        _ => {}
    }
    // Earlier versions cannot say that memory is only for reading.
    let is_told = wanted.max_version.is_some_and(|(major, _)| major >= 1);
    let is_reachable = there == here && is_shared(x.tensor.place());
    if is_told && is_reachable && wanted.copy != Some(true) {
        return made(py, lent(py, x, &x.tensor)?, there, true, DLPACK_FLAG_BITMASK_READ_ONLY);
    }
    if wanted.copy == Some(false) {
        return refused("without a copy a tensor is given away where it is, and to libraries that know version 1 of DLPack, which can say that memory is only for reading".to_owned());
    }
    let place =
        if there == CPU && !is_host(x.tensor.place()) { Place::Device(DeviceId::cpu(0)) } else { x.tensor.place() };
    let copy = waiting::call(py, || x.tensor.to(place))?;
    made(py, lent(py, x, &copy)?, there, is_told, DLPACK_FLAG_BITMASK_IS_COPIED)
}

/// Lends the memory of a tensor of the engine of `x`, once it is written.
fn lent(py: Python<'_>, x: &PyTensor, tensor: &Tensor) -> PyResult<Lent> {
    // Mostly it is, and then nothing is left to wait for without the lock.
    let at_once = TimeLimit(Duration::ZERO).run(|| x.engine.vm().lend(tensor));
    at_once.or_else(|_| waiting::call(py, || x.engine.vm().lend(tensor)))
}

fn is_host(place: Place) -> bool {
    place.device().is_none_or(|device| device.kind.info().host_memory)
}

/// Whether other libraries can reach memory of this place.
fn is_shared(place: Place) -> bool {
    is_host(place) || place.device().is_some_and(|device| device.kind == DeviceKind::CUDA)
}

fn dtype(dtype: DType) -> DLDataType {
    let code = match dtype {
        DType::Bool => DLDataTypeCode::kDLBool,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => DLDataTypeCode::kDLInt,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => DLDataTypeCode::kDLUInt,
        DType::F16 | DType::F32 | DType::F64 => DLDataTypeCode::kDLFloat,
        DType::BF16 => DLDataTypeCode::kDLBfloat,
    };
    DLDataType { code, bits: 8 * dtype.size() as u8, lanes: 1 }
}

/// What the struct of a capsule points to.
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
    // SAFETY: the capsule is alive. Who takes it gives it another name.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 1 {
        // SAFETY: it has this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
        // SAFETY: the capsule owns it.
        unsafe { freed::<M>(managed.cast()) };
    }
}

fn made(py: Python<'_>, lent: Lent, device: Number, versioned: bool, flags: u64) -> PyResult<Bound<'_, PyAny>> {
    match versioned {
        true => made_as::<DLManagedTensorVersioned>(py, lent, device, flags),
        false => made_as::<DLManagedTensor>(py, lent, device, flags),
    }
}

fn made_as<M: Managed>(py: Python<'_>, lent: Lent, (kind, number): Number, flags: u64) -> PyResult<Bound<'_, PyAny>> {
    let tensor = lent.tensor();
    let (layout, rank, dtype) = (tensor.layout(), tensor.rank(), dtype(tensor.dtype()));
    let axes = tensor.dims().iter().chain(layout.strides()).map(|axis| *axis as i64).collect();
    let data = if tensor.numel() == 0 { std::ptr::null_mut() } else { lent.as_ptr().cast_mut().cast() };
    let device = if kind == CUDA { DLDevice::cuda(number) } else { DLDevice::cpu() };
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

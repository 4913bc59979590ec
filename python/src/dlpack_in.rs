//! DLPack: the memory of other array libraries as tensors, without a copy where nothing writes it.
//!
//! The engine reads a tensor later than the call that says so. So it shares what is read-only, what the other library has copied for it, and what the caller says that nobody writes. An array of
//! NumPy may be a read-only view of memory that others write, so `_dlpack.py` looks at these first.
#![allow(unsafe_code, reason = "reads structs that other libraries have made, and calls their deleters")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use dlpk::sys::{
    DLManagedTensor, DLManagedTensorVersioned, DLPACK_FLAG_BITMASK_IS_COPIED, DLPACK_FLAG_BITMASK_READ_ONLY,
    DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, DLTensor,
};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use pyo3::{ffi, intern};
use streamvm::ep::{Element, Layout, Shape};
use streamvm::{DType, Place, Site, Tensor, Vm, bf16, f16};

use crate::{callbacks, caller, dlpack, waiting};

/// The kinds of devices whose memory the CPU reads: its own, and memory that CUDA has pinned.
const MEMORY_OF_CPU: [i32; 2] = [1, 3];

/// A struct of the format that was taken out of its capsule.
struct Managed {
    versioned: bool,
    address: NonNull<c_void>,
}

// SAFETY: the format lets any thread read the memory and call the deleter.
unsafe impl Send for Managed {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    /// Gives the memory back to its library, which mostly needs the interpreter's lock for that. Once the interpreter ends, the memory stays.
    fn drop(&mut self) {
        callbacks::call_before_the_end(|_| {
            if self.versioned {
                let managed = self.address.cast::<DLManagedTensorVersioned>().as_ptr();
                // SAFETY: the struct is alive until its deleter is called, here and only here.
                let deleter = unsafe { (*managed).deleter };
                // SAFETY: as above.
                deleter.into_iter().for_each(|deleter| unsafe { deleter(managed) });
            } else {
                let managed = self.address.cast::<DLManagedTensor>().as_ptr();
                // SAFETY: as above.
                let deleter = unsafe { (*managed).deleter };
                // SAFETY: as above.
                deleter.into_iter().for_each(|deleter| unsafe { deleter(managed) });
            }
        });
    }
}

/// [`DLTensor`] with numbers in place of enums: others may give values that are not known here.
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device: i32,
    _number: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

const _: () = assert!(size_of::<RawTensor>() == size_of::<DLTensor>());

/// The elements that a struct gives away, from the first to the last one that its strides reach.
struct Elements<T> {
    first: NonNull<T>,
    count: usize,
    _managed: Managed,
}

// SAFETY: the elements are only read, and are numbers.
unsafe impl<T: Element> Send for Elements<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Elements<T> {}

impl<T: Element> AsRef<[T]> for Elements<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: the struct keeps so many elements, which are aligned, each a number of this dtype; the library or the caller has said that nobody writes them.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

/// An array of another library.
struct Given {
    managed: Managed,
    dtype: DType,
    layout: Layout,
    first: *mut c_void,
    /// Its library says that nobody writes it: it is read-only, or a copy that was made for us.
    stays: bool,
}

/// Why there is no tensor over the memory of an array.
enum No {
    /// Its elements can be copied.
    Shared(&'static str),
    Ever(String),
}

/// A tensor over the memory of `x`, an array of another library. `None` if the elements must be copied, and the caller does not insist. With `never_written` the caller says that nothing writes
/// the memory until all that reads the tensor is over.
///
/// # Errors
/// `TypeError`: `x` has no DLPack; `BufferError`: it cannot be shared, and `never_written` insists; what the other library raises; those of [`Vm::adopt`].
pub(crate) fn shared(
    py: Python<'_>,
    vm: &Vm,
    x: &Bound<'_, PyAny>,
    place: Place,
    never_written: bool,
) -> PyResult<Option<Tensor>> {
    if never_written && !is_here(place) {
        return Err(PyBufferError::new_err(format!("a tensor on {place} is a copy; leave `copy` out")));
    }
    let asked = asked(x, never_written)?;
    let given = match given(&asked.capsule) {
        Ok(given) => given,
        Err(No::Shared(_)) if !never_written => return Ok(None),
        Err(No::Shared(why)) => {
            return Err(PyBufferError::new_err(format!("the array cannot be shared: {why}; leave `copy` out")));
        }
        Err(No::Ever(why)) => return Err(PyBufferError::new_err(why)),
    };
    // NumPy, which copies all else, has no bfloat16, and reads memory of the CPU only.
    let (is_shared, dtype) = (given.stays || never_written, given.dtype);
    if !is_shared && dtype != DType::BF16 && asked.is_of_cpu {
        return Ok(None);
    }
    let tensor = match dtype {
        DType::F32 => tensor::<f32>,
        DType::F64 => tensor::<f64>,
        DType::F16 => tensor::<f16>,
        DType::BF16 => tensor::<bf16>,
        DType::I8 => tensor::<i8>,
        DType::I16 => tensor::<i16>,
        DType::I32 => tensor::<i32>,
        DType::I64 => tensor::<i64>,
        DType::Bool | DType::U8 => tensor::<u8>,
        DType::U16 => tensor::<u16>,
        DType::U32 => tensor::<u32>,
        DType::U64 => tensor::<u64>,
    };
    tensor(py, vm, given, place, is_shared).map(Some)
}

fn is_here(place: Place) -> bool {
    place.device().is_none_or(|device| device.kind.info().host_memory)
}

fn tensor<T: Element>(py: Python<'_>, vm: &Vm, given: Given, place: Place, is_shared: bool) -> PyResult<Tensor> {
    let Given { managed, layout, first, .. } = given;
    // An array without elements may have no address.
    let first = NonNull::new(first.cast::<T>()).unwrap_or(NonNull::dangling());
    let count = layout.span_elements().end;
    let elements = Elements { first, count, _managed: managed };
    if !is_shared {
        let copy = in_rows(elements.as_ref(), &layout);
        return waiting::call(py, || vm.from_slice_on(place, &copy, layout.shape().dims()));
    }
    let near = if is_here(place) { place } else { Place::Host };
    let tensor = {
        let _site = caller::site(py)?.map(Site::enter);
        waiting::at_once(py, || vm.adopt(near, elements, &[count])?.view(layout))?
    };
    // A copy is submitted, which may wait.
    if near == place { Ok(tensor) } else { waiting::call(py, || tensor.to(place)) }
}

/// The elements of a view in row-major order.
fn in_rows<T: Element>(elements: &[T], layout: &Layout) -> Vec<T> {
    let mut places = vec![0];
    for (&size, &stride) in layout.shape().dims().iter().zip(layout.strides()) {
        places = places.iter().flat_map(|place| (0..size).map(move |number| place + number * stride)).collect();
    }
    places.into_iter().map(|place| elements[place]).collect()
}

/// The answer of another library.
struct Asked<'py> {
    capsule: Bound<'py, PyAny>,
    /// The array itself is in memory of the CPU.
    is_of_cpu: bool,
}

/// Asks `x` for a capsule with its memory, or with a copy in memory of the CPU.
fn asked<'py>(x: &Bound<'py, PyAny>, never_copied: bool) -> PyResult<Asked<'py>> {
    static VERSION: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let py = x.py();
    let no = |error: PyErr| {
        let Ok(class) = x.get_type().name() else { return error };
        PyTypeError::new_err(format!("a {class} gives no elements by DLPack; use streamvm.asarray"))
    };
    let method = x.getattr(intern!(py, "__dlpack__")).map_err(no)?;
    let (kind, _): dlpack::Number = x.call_method0(intern!(py, "__dlpack_device__")).map_err(no)?.extract()?;
    let asked = VERSION.get_or_try_init(py, || {
        let asked = PyDict::new(py);
        asked.set_item("max_version", (DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION))?;
        PyResult::Ok(asked.unbind())
    })?;
    let is_of_cpu = MEMORY_OF_CPU.contains(&kind);
    let mut asked = asked.bind(py).clone();
    if never_copied || !is_of_cpu {
        asked = asked.copy()?;
    }
    if never_copied {
        asked.set_item("copy", false)?;
    }
    if !is_of_cpu {
        asked.set_item("dl_device", dlpack::CPU)?;
    }
    let capsule = match method.call((), Some(&asked)) {
        // A library from before version 1 knows none of these arguments.
        Err(error) if is_of_cpu && error.is_instance_of::<PyTypeError>(py) => method.call0(),
        given => given,
    };
    Ok(Asked { capsule: capsule?, is_of_cpu })
}

/// Takes the struct out of a capsule, which then is empty.
fn taken(capsule: &Bound<'_, PyAny>) -> Option<Managed> {
    let names: [(bool, &CStr, &CStr); 2] =
        [(true, c"dltensor_versioned", c"used_dltensor_versioned"), (false, c"dltensor", c"used_dltensor")];
    let object = capsule.as_ptr();
    for (versioned, name, used) in names {
        // SAFETY: the object is alive; any object may be asked.
        if unsafe { ffi::PyCapsule_IsValid(object, name.as_ptr()) } == 1 {
            // SAFETY: it is a capsule of this name, so it has an address.
            let address = NonNull::new(unsafe { ffi::PyCapsule_GetPointer(object, name.as_ptr()) })?;
            // SAFETY: it is a capsule, and the name is a constant. By this name its destructor sees that the struct is no longer its own.
            return (unsafe { ffi::PyCapsule_SetName(object, used.as_ptr()) } == 0)
                .then(|| Managed { versioned, address });
        }
    }
    None
}

/// Reads the struct of a capsule.
fn given(capsule: &Bound<'_, PyAny>) -> Result<Given, No> {
    let no_capsule = || No::Ever("`__dlpack__` returned something else than a new capsule".to_owned());
    let managed = taken(capsule).ok_or_else(no_capsule)?;
    let (tensor, stays): (*const DLTensor, bool) = if managed.versioned {
        let versioned = managed.address.cast::<DLManagedTensorVersioned>().as_ptr();
        // SAFETY: a struct of this name begins with its version.
        let version = unsafe { (*versioned).version };
        if version.major != DLPACK_MAJOR_VERSION {
            let (major, minor) = (version.major, version.minor);
            return Err(No::Ever(format!(
                "the array is given in version {major}.{minor} of DLPack, and {DLPACK_MAJOR_VERSION} is known here"
            )));
        }
        // SAFETY: in this version there is a field with flags.
        let flags = unsafe { (*versioned).flags };
        // SAFETY: and one with the tensor.
        let tensor = unsafe { &raw const (*versioned).dl_tensor };
        (tensor, flags & (DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED) != 0)
    } else {
        // SAFETY: a struct of this name has one.
        (unsafe { &raw const (*managed.address.cast::<DLManagedTensor>().as_ptr()).dl_tensor }, false)
    };
    // SAFETY: the struct is alive, and numbers of any value may be in it.
    let RawTensor { data, device, rank, code, bits, lanes, shape, strides, offset, .. } =
        unsafe { tensor.cast::<RawTensor>().read() };
    if !MEMORY_OF_CPU.contains(&device) {
        return Err(No::Ever("the array is not in memory of the CPU, and its library makes no copy there".to_owned()));
    }
    let known = |known: &&DType| {
        let known = dlpack::dtype(**known);
        (known.code as u8, known.bits, known.lanes) == (code, bits, lanes)
    };
    let dtype = DType::ALL.iter().find(known).copied();
    let dtype = dtype.ok_or(No::Shared("its elements are of a type that tensors do not have"))?;
    if dtype == DType::Bool {
        return Err(No::Shared("truth values of others may have other bytes than 0 and 1"));
    }
    let first = data.wrapping_byte_add(offset as usize);
    if !first.addr().is_multiple_of(dtype.size()) {
        return Err(No::Shared("its elements are not aligned"));
    }
    // SAFETY: the struct lives, with a size for each axis.
    let sizes = unsafe { axes(shape, rank) };
    // SAFETY: as above, and a stride.
    let strides = unsafe { axes(strides, rank) };
    let sizes = sizes.ok_or_else(|| No::Ever(format!("an array of {rank} axes is given without their sizes")))?;
    let layout = layout(sizes, strides)?;
    if data.is_null() && layout.elements() > 0 {
        return Err(No::Ever("the array is given without an address".to_owned()));
    }
    Ok(Given { managed, dtype, layout, first, stays })
}

/// The numbers of the axes, if there are any.
///
/// # Safety
/// `numbers` is null, or has one for each axis, as long as the result is used.
unsafe fn axes<'a>(numbers: *const i64, rank: i32) -> Option<&'a [i64]> {
    match usize::try_from(rank) {
        Ok(0) => Some(&[]),
        // SAFETY: the caller says so.
        Ok(rank) if !numbers.is_null() => Some(unsafe { std::slice::from_raw_parts(numbers, rank) }),
        _ => None,
    }
}

fn layout(sizes: &[i64], strides: Option<&[i64]>) -> Result<Layout, No> {
    let positive =
        |numbers: &[i64]| numbers.iter().map(|number| usize::try_from(*number).ok()).collect::<Option<Vec<_>>>();
    let too_large = "it has more axes or elements than tensors may have";
    let shape = positive(sizes).and_then(|sizes| Shape::new(&sizes).ok()).ok_or(No::Shared(too_large))?;
    let Some(strides) = strides else { return Ok(Layout::contiguous(shape)) };
    // That of an axis without a second element says nothing.
    let strides: Vec<i64> =
        strides.iter().zip(sizes).map(|(stride, size)| if *size < 2 { 0 } else { *stride }).collect();
    let strides = positive(&strides).ok_or(No::Shared("an axis runs backwards in memory"))?;
    let layout = Layout::with_strides(shape, &strides, 0).map_err(|_| No::Shared(too_large))?;
    Ok(if layout.is_contiguous() { Layout::contiguous(shape) } else { layout })
}

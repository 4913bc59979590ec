//! The launch of a caller's kernel: grid and arguments.

use std::ffi::c_void;
use std::ptr;

use streamvm_ep::Operand;

/// Grid, block and shared memory of a launch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CudaGrid {
    /// Blocks along x, y and z; each at least 1.
    pub blocks: [u32; 3],
    /// Threads of a block along x, y and z; each at least 1, at most 1024 in all.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// One parameter of a kernel, by value.
#[derive(Copy, Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are those of the types")]
pub enum CudaArgument {
    /// An address, such as that of an operand.
    Address(u64),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl CudaArgument {
    /// A pointer to the value.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        match self {
            CudaArgument::Address(value) | CudaArgument::U64(value) => ptr::from_ref(value).cast_mut().cast(),
            CudaArgument::I32(value) => ptr::from_ref(value).cast_mut().cast(),
            CudaArgument::U32(value) => ptr::from_ref(value).cast_mut().cast(),
            CudaArgument::I64(value) => ptr::from_ref(value).cast_mut().cast(),
            CudaArgument::F32(value) => ptr::from_ref(value).cast_mut().cast(),
            CudaArgument::F64(value) => ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

impl From<&Operand<'_>> for CudaArgument {
    /// The address of the first element of the view. A kernel needs further parameters for the strides.
    fn from(operand: &Operand<'_>) -> CudaArgument {
        CudaArgument::Address(operand.ptr().addr() as u64)
    }
}

//! The handles of the stand-in for cuBLAS.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use crate::objects::context::Context;
use crate::objects::stream::Stream;

/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`.
pub(crate) const FULL_PRECISION: c_int = 16;

/// The object of a cuBLAS handle.
#[derive(Debug)]
pub(crate) struct Cublas {
    pub(crate) context: Arc<Context>,
    /// Address of its device memory.
    pub(crate) workspace: u64,
    pub(crate) set: Mutex<Set>,
}

/// The settings of a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pub(crate) stream: Option<Arc<Stream>>,
    pub(crate) math: c_int,
    /// The address of device memory of the caller that it uses.
    pub(crate) own_workspace: Option<u64>,
}

//! The driver's own stream, for a caller's own commands: kernels compiled elsewhere, libraries such as cuBLAS.

use std::ffi::c_void;

use crate::closure::FnError;
use crate::device::DeviceId;
use crate::operand::Operand;

/// What [`Stream::call_raw`](crate::Stream::call_raw) gives a caller's function.
///
/// The context is current in the calling thread while the function runs. What it queues on the stream, and on no other,
/// is ordered like any command; it must not wait for it, nor leave another context current, nor end what it was given.
#[derive(Debug)]
pub struct RawCall<'a> {
    /// The device of the stream.
    pub device: DeviceId,
    /// The driver's context: a `CUcontext`.
    pub context: *mut c_void,
    /// The driver's stream: a `CUstream`.
    pub stream: *mut c_void,
    /// What the call was given. Their addresses are the device's; they give no slices.
    pub operands: &'a [Operand],
}

/// A caller's function over a driver's stream. It runs once, in the thread that gives the stream its commands, and returns
/// once it has queued what it wants.
pub type RawFn<'f> = dyn FnMut(&RawCall<'_>) -> Result<(), FnError> + 'f;

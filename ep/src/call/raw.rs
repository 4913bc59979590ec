//! Access to the driver's own stream, for commands of the caller: kernels compiled elsewhere, and libraries such as cuBLAS.

use std::ffi::c_void;

use crate::call::operand::Operand;
use crate::errors::call_error::FnError;
use crate::names::device_id::DeviceId;

/// The arguments that [`Stream::call_raw`](crate::Stream::call_raw) passes to a caller's function.
///
/// The driver's context is current in the calling thread while the function runs. Commands that the function queues on `stream` are
/// ordered like any command of this stream; commands that it queues elsewhere are not. The function must not
///
/// * wait for `stream`,
/// * leave another context current, or
/// * destroy the context or the stream.
#[derive(Debug)]
pub struct RawCall<'a> {
    /// The device of the stream.
    pub device: DeviceId,
    /// The driver's context: a `CUcontext`.
    pub context: *mut c_void,
    /// The driver's stream: a `CUstream`.
    pub stream: *mut c_void,
    /// The operands of the call. Their addresses are device addresses; they give no slices.
    pub operands: &'a [Operand<'a>],
}

/// A caller's function over a driver's stream. It runs once, in the thread that submits the commands of the stream, and returns once it
/// has queued its commands, without waiting for them.
pub type RawFn<'f> = dyn FnMut(&RawCall<'_>) -> Result<(), FnError> + 'f;

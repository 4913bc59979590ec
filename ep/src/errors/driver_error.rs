//! The error of a failed call of the CUDA driver, as data.

/// A call of the CUDA driver that failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} gave {name} ({code}): {text}")]
pub struct DriverError {
    /// The name of the driver's function.
    pub call: &'static str,
    /// The driver's error code.
    pub code: u32,
    /// The driver's name for the code, such as `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver's explanation.
    pub text: String,
}

crate::debug_as_display!(DriverError);

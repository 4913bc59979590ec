//! Errors of a call of the caller's code.

use crate::errors::error::Error;

/// The error type of a caller's closure.
pub type FnError = Box<dyn std::error::Error + Send + Sync>;

/// The error of a call of the caller's code on a stream.
#[derive(thiserror::Error)]
pub enum CallError {
    /// The device refused the call or failed.
    #[error(transparent)]
    Device(#[from] Error),
    /// The caller's code returned an error.
    #[error("{0}")]
    Function(FnError),
}

crate::debug_as_display!(CallError);

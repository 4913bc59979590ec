//! Places that a C caller wants results in.

use crate::code::{Code, Outcome};

/// A pointer parameter for a result.
///
/// Invariant: it is null, or points to a place for a `T` that may be written. It only comes from a caller of an exported
/// function, whose duty that is, and from tests.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if there is no place.
    pub(crate) fn put(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: see the invariant.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Errs if there is no place: what cannot be told must not be made.
    pub(crate) fn check(&self) -> Outcome {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// The pointer itself, for a place that holds more than one `T`.
    pub(crate) fn ptr(&self) -> *mut T {
        self.0
    }
}

impl<T> Out<T> {
    /// A place of a caller within this library.
    pub(crate) fn to(place: &mut T) -> Out<T> {
        Out(place)
    }
}

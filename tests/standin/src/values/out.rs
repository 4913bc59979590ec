//! Pointer parameters through which a C caller receives results.

use crate::values::code::{Code, Outcome};

/// A pointer parameter for a result.
///
/// Invariant: it is null, or points to a place for a `T` that may be written. It comes only from tests and from callers of exported
/// functions, whose duty this is.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if the pointer is null.
    pub(crate) fn put(&self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so by the invariant it may be written.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Returns `INVALID_VALUE` if the pointer is null. Called before an object is created, since its handle could not be returned.
    pub(crate) fn check(&self) -> Outcome {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    /// The pointer itself, for a place with room for more than one `T`.
    pub(crate) fn ptr(&self) -> *mut T {
        self.0
    }
}

impl<T> Out<T> {
    /// A parameter for a caller within this library.
    pub(crate) fn to(place: &mut T) -> Out<T> {
        Out(place)
    }
}

//! A function of the caller as a step of a sequence.

use std::fmt;
use std::sync::Arc;

use crate::call::fn_context::FnContext;

/// The code of a function step. It gets the operands of the step, and returns the text of its error. It takes a context of any lifetime, so it cannot keep
/// what the context gives: unsafe code of the sequence relies on that.
pub type SequenceCode = dyn for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), String> + Send + Sync;

/// A function of the caller. Clones call the same code, several threads at once where runs overlap.
#[derive(Clone)]
pub struct SequenceFunction {
    code: Arc<SequenceCode>,
}

impl SequenceFunction {
    /// A function with this code, which must not panic.
    pub fn new(code: impl for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        SequenceFunction { code: Arc::new(code) }
    }

    /// Calls the code.
    ///
    /// # Errors
    /// The text of its error, or that it has not taken an operand that it overwrites.
    #[inline]
    pub fn call(&self, context: &mut FnContext<'_>) -> Result<(), String> {
        (self.code)(context)?;
        context.check_taken().map_err(|error| error.to_string())
    }
}

impl fmt::Debug for SequenceFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SequenceFunction").finish_non_exhaustive()
    }
}

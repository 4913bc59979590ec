//! Outcomes of callers' functions that the engine adds to success and the caller's own errors.
//!
//! The engine wraps callers' functions. Functions may return errors of any type, and the streams of all devices pass errors through
//! unchanged. So the wrapper returns an error of the private type [`FunctionOutcome`], which no caller can create, and the code
//! that runs the instruction checks for it on its error path only.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use streamvm_ep::Site;
use streamvm_instructions::Cause;

use crate::dispatch::deferred_function::DeferredFunction;

/// An outcome that travels as an error. Private to the engine.
#[derive(Debug)]
pub(crate) enum FunctionOutcome {
    /// The function returned, and completes when its handle is used.
    Deferred(Arc<DeferredFunction>),
    /// The function failed, with a cause of its own kind.
    Failed(Cause),
    /// One of several functions in one instruction failed.
    Part {
        /// The function's name.
        name: Cow<'static, str>,
        /// The caller's site.
        site: Site,
        /// Why it failed.
        cause: Cause,
    },
}

impl fmt::Display for FunctionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FunctionOutcome::Deferred(_) => f.write_str("not over yet"),
            FunctionOutcome::Failed(cause) => write!(f, "{cause}"),
            FunctionOutcome::Part { name, cause, .. } => write!(f, "{name}: {cause}"),
        }
    }
}

impl std::error::Error for FunctionOutcome {}

//! What a function of a caller answers through what the engine wraps it in, beside success and an error of the caller's.
//!
//! Functions return errors of any type, and streams of any device hand them on as they are. So the wrapper returns an error
//! of this type, which no caller can make, and whoever runs the instruction looks for it where an error comes anyway.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use streamvm_instructions::Cause;

use crate::push::Later;

/// See the module's comment.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It was called, and is over when its handle says so.
    Later(Arc<Later>),
    /// Of several functions in one instruction this one failed.
    Part {
        /// Its name.
        name: Cow<'static, str>,
        /// Where the caller issued it.
        site: &'static Location<'static>,
        /// What went wrong.
        cause: Cause,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Later(_) => f.write_str("not over yet"),
            Answer::Part { name, cause, .. } => write!(f, "{name}: {cause}"),
        }
    }
}

impl std::error::Error for Answer {}

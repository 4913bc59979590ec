//! Panics of code that the engine calls: callers' functions, backends, loggers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use streamvm_ep as ep;

/// The message of a panic. The payload is dropped here. If that drop panics as well, the second payload is leaked, because dropping
/// it could panic again without end.
pub(crate) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a value that is no text".to_owned(),
    };
    if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(second);
    }
    text
}

/// Calls a backend, and turns a panic in it into an error.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, ep::Error>) -> Result<T, ep::Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = panic_text(payload);
        Err(ep::Error::Kernel(ep::KernelError::Other(format!("the backend panicked: {text}"))))
    })
}

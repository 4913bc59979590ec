//! [`OnComplete`]: the handle of an asynchronous function.
//!
//! A worker calls the function with a handle. If the handle was not used when the function returns, the task is kept in a
//! [`DeferredFunction`], and the worker goes on. The thread that uses the handle gives the task back to its pool, with the result;
//! a worker then runs it once more, and it passes like any other task. So the thread that completes does little more than push
//! into a queue, and runs no code of any other caller.

use std::fmt;
use std::sync::Arc;

use streamvm_ep::FnError;

use crate::dispatch::deferred_function::DeferredFunction;
use crate::sync::fork::Fork;

/// The handle that ends an asynchronous function; see [`Vm::push_async`](crate::Vm::push_async).
///
/// It is `Send`: a program may move it to any thread, and use it there once. Dropping it unused fails the function. In a forked
/// child, using or dropping it does nothing: the function goes on in the parent alone.
#[must_use = "dropping the handle unused fails its function"]
pub struct OnComplete {
    later: Option<Arc<DeferredFunction>>,
}

impl OnComplete {
    /// Ends the function with `result`; an error fails everything that the function writes.
    ///
    /// Never blocks. May be called on any thread, also after the engine was closed. The calling thread does not run the
    /// instructions that wait for the function.
    pub fn complete(mut self, result: Result<(), FnError>) {
        if let Some(later) = self.take() {
            later.complete(result);
        }
    }

    /// Takes the function out, once. `None` in a forked child, where the function is leaked: a thread that is not in the child
    /// may hold its lock.
    fn take(&mut self) -> Option<Arc<DeferredFunction>> {
        let later = self.later.take()?;
        if later.fork.is_child() {
            std::mem::forget(later);
            return None;
        }
        Some(later)
    }
}

impl Drop for OnComplete {
    fn drop(&mut self) {
        if let Some(later) = self.take() {
            later.complete(Err("its handle was dropped without completing it".into()));
        }
    }
}

impl fmt::Debug for OnComplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnComplete").finish_non_exhaustive()
    }
}

/// Calls `f` with a handle. `fork` tells whether the process is a forked child of the one that built the engine. If the handle
/// was used when `f` returns, the function is over, and this returns its result.
pub(crate) fn call_with_handle(fork: Fork, f: impl FnOnce(OnComplete)) -> Result<(), FnError> {
    DeferredFunction::call(fork, |later| f(OnComplete { later: Some(later) }))
}

//! A future that is ready once a wait is over.
//!
//! A future registers one callback with its engine when it is made, and takes it back when it is dropped. So a program may make, poll and drop
//! any number of futures of work that is pending: the engine keeps those that exist. All pollers share the state of the future: its result
//! and the waker of its last poller. Cloning, waking and dropping a waker runs code of the caller, so no lock is held then.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::engine::interface::{Callback, EngineRef, Registration};
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;
use crate::tensor::var::Var;

/// A future that is ready once a point has passed. Dropping it cancels no work; the engine then forgets the future and its waker. In a forked
/// child of the engine's process it is ready at once with [`Error::Forked`].
pub struct Passed {
    state: Arc<Mutex<PassedState>>,
    /// `None` where no engine knows what is waited for.
    engine: Option<EngineRef>,
    /// Takes the callback of this future back. `None` if the future was ready when it was made.
    registration: Option<Arc<dyn Registration>>,
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passed").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct PassedState {
    result: Option<Result<(), Error>>,
    waker: Option<Waker>,
}

impl Passed {
    /// Returns a future for work of `engine`. `register` gets the callback that makes the future ready; see [`Engine::register`].
    ///
    /// [`Engine::register`]: crate::Engine::register
    pub fn new(engine: EngineRef, register: impl FnOnce(Callback) -> Option<Arc<dyn Registration>>) -> Passed {
        let state = Arc::new(Mutex::new(PassedState::default()));
        let shared = state.clone();
        let callback = move |result| {
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some(result);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        let registration = register(Box::new(callback));
        Passed { state, engine: Some(engine), registration }
    }

    /// A future that is ready, with this outcome.
    pub(super) fn over(outcome: Result<(), Error>) -> Passed {
        let state = PassedState { result: Some(outcome), waker: None };
        Passed { state: Arc::new(Mutex::new(state)), engine: None, registration: None }
    }

    /// In a forked child, a thread that does not exist there may have held a lock at the fork, so that it is never free.
    fn is_forked(&self) -> bool {
        self.engine.is_some_and(|engine| engine.get().is_forked())
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        match self.registration.take() {
            Some(registration) if self.is_forked() => std::mem::forget(registration),
            Some(registration) => registration.cancel(),
            None => {}
        }
    }
}

impl Future for Passed {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_forked() {
            return Poll::Ready(Err(Error::forked()));
        }
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = lock();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        if state.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            return Poll::Pending;
        }
        drop(state);
        let waker = context.waker().clone();
        let mut state = lock();
        if let Some(result) = &state.result {
            let result = result.clone();
            drop(state);
            return Poll::Ready(result);
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

/// `tensor.await` is [`Tensor::ready`], with a refusal as the outcome: [`Error::NotSubmitted`] for a tensor that no engine knows yet.
impl IntoFuture for &Tensor {
    type Output = Result<(), Error>;
    type IntoFuture = Passed;

    #[track_caller]
    fn into_future(self) -> Passed {
        self.ready().unwrap_or_else(|error| Passed::over(Err(error)))
    }
}

/// As for a borrowed tensor. The future does not keep the tensor.
impl IntoFuture for Tensor {
    type Output = Result<(), Error>;
    type IntoFuture = Passed;

    #[track_caller]
    fn into_future(self) -> Passed {
        (&self).into_future()
    }
}

/// `var.await` is [`Var::ready`], with a refusal as the outcome.
impl IntoFuture for &Var {
    type Output = Result<(), Error>;
    type IntoFuture = Passed;

    #[track_caller]
    fn into_future(self) -> Passed {
        self.ready().unwrap_or_else(|error| Passed::over(Err(error)))
    }
}

/// As for a borrowed variable. The future does not keep the variable.
impl IntoFuture for Var {
    type Output = Result<(), Error>;
    type IntoFuture = Passed;

    #[track_caller]
    fn into_future(self) -> Passed {
        (&self).into_future()
    }
}

//! A future that is ready once a wait is over.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::engine::interface::EngineRef;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;
use crate::tensor::var::Var;

/// A future that is ready once a point has passed. Dropping it cancels nothing. In a forked child of the engine's process it is
/// ready at once with [`Error::Forked`].
pub struct Passed {
    state: Arc<Mutex<PassedState>>,
    /// `None` where no engine knows what is waited for.
    engine: Option<EngineRef>,
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
    /// Returns a future for work of `engine`, and the callback that makes the future ready.
    pub fn new(engine: EngineRef) -> (Passed, impl FnOnce(Result<(), Error>) + Send + 'static) {
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
        (Passed { state, engine: Some(engine) }, callback)
    }

    /// A future that is ready, with this outcome.
    pub(super) fn over(outcome: Result<(), Error>) -> Passed {
        let state = PassedState { result: Some(outcome), waker: None };
        Passed { state: Arc::new(Mutex::new(state)), engine: None }
    }
}

impl Future for Passed {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Checked before the lock: in a forked child, the thread that held the lock at the fork does not exist, so the lock may
        // never be free.
        if self.engine.is_some_and(|engine| engine.get().is_forked()) {
            return Poll::Ready(Err(Error::Forked));
        }
        // Cloning and dropping a waker runs code of the user. So the new waker is cloned before the lock is taken, and the old one
        // dropped after it is released.
        let waker = context.waker().clone();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
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

//! Waiting for variables.

use crate::eager::passed::Passed;
use crate::engine::interface::{EngineRef, ResourceId};
use crate::engine::time_limit::Deadline;
use crate::error::engine_error::Error;
use crate::tensor::var::Var;
use streamvm_ep::Site;

impl Var {
    /// Where to wait for the variable; `None` if no submission has used it, so there is nothing to wait for.
    #[track_caller]
    fn known(&self) -> Result<Option<(EngineRef, ResourceId)>, Error> {
        let Some((engine, id)) = self.resource().bound() else { return Ok(None) };
        if self.resource().written_in(engine).is_none() && engine.get().is_released(id) {
            let (what, operand) = ("wait".to_owned(), "a variable".to_owned());
            return Err(Error::Released { line: 0, what, operand, site: Site::caller() });
        }
        Ok(Some((engine, id)))
    }

    /// Blocks until all writes of the variable that were submitted so far, by any thread, have passed. Does not wait for reads.
    /// Returns at once for a variable without writes. May be called by several threads at once. For a variable that no submission
    /// has used, it returns `Ok` on any thread and in any process.
    ///
    /// # Errors
    /// * The root cause of the last write's failure, on every call, until a later write heals it.
    /// * [`Error::WouldDeadlock`] on a thread of an engine, which includes every function.
    /// * [`Error::Released`] for a deleted variable while its engine exists; [`Error::Shutdown`] if the engine is gone and a write
    ///   never passes.
    /// * [`Error::Timeout`] at the [`TimeLimit`](crate::TimeLimit) of the thread, [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        match self.known()? {
            Some((engine, id)) => engine.get().wait(id, None, Deadline::current(), Site::caller()),
            None => Ok(()),
        }
    }

    /// A future that resolves to what [`Var::wait`] would return, for the writes submitted before this call. It works with any
    /// executor. Dropping it cancels no work.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, [`Error::Released`] for a deleted variable.
    #[track_caller]
    pub fn ready(&self) -> Result<Passed, Error> {
        let Some((engine, id)) = self.known()? else { return Ok(Passed::over(Ok(()))) };
        if engine.get().is_forked() {
            return Err(Error::forked());
        }
        let site = Site::caller();
        Ok(Passed::new(engine, |callback| engine.get().register(id, None, callback, site)))
    }

    /// Calls `callback` with what [`Var::wait`] would return, once the writes that were submitted before this call have passed, on
    /// the engine's callback thread. This call does not block, except in an engine that callers step, which it steps until then; it
    /// may be made on any thread. Callbacks that are due run before the engine has shut down.
    ///
    /// # Errors
    /// [`Error::NotSubmitted`] if no submission has used the variable, so that no engine could call; those of [`Var::ready`]. The
    /// callback is then dropped without a call.
    #[track_caller]
    pub fn on_passed(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        let Some((engine, id)) = self.known()? else {
            return Err(Error::NotSubmitted { operand: "a variable".to_owned(), site: Site::caller() });
        };
        if engine.get().is_forked() {
            return Err(Error::forked());
        }
        engine.get().on_passed(id, None, Box::new(callback), Site::caller());
        Ok(())
    }
}

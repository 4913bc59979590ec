//! The executables for the sizes of runs, of a program with bounded sizes.

use streamvm_ep::Site;
#[cfg(doc)]
use streamvm_instructions::ProgramError;
use streamvm_instructions::{Error, Tensor};

use crate::program_cache::key::Query;
use crate::programs::executable::Executable;
use crate::sync::fork::refuse_in_child;

impl Executable {
    /// The executable for the sizes of these feeds, of a program with bounded sizes ([`Vm::record_bounded`](crate::Vm::record_bounded)); of another one, itself. Each run
    /// uses the one for its feeds: the steps, their order and the memory of the executable for the bounds, over smaller tensors. Nothing is
    /// compiled. The executables for the last 16 choices of sizes are kept.
    ///
    /// # Errors
    /// [`ProgramError::Size`] and [`ProgramError::Mismatch`] if a feed does not fit; [`ProgramError::Unknown`]; [`ProgramError::Malformed`] if the program has no steps
    /// for these sizes; [`Error::Shutdown`] when the engine is gone.
    #[track_caller]
    pub fn at_sizes_of(&self, feeds: &[(&str, &Tensor)]) -> Result<Executable, Error> {
        if !self.inner.has_bounded_sizes() {
            return Ok(self.clone());
        }
        let site = Site::caller();
        let sized = || {
            let Some(engine) = self.engine.upgrade() else { return Err(Error::shutdown()) };
            refuse_in_child(engine.handle.fork)?;
            let whole = &self.inner;
            let sizes = whole.compiled.program().sizes_of(feeds)?;
            let all = whole.for_sizes();
            let inner = all.kept.get_or_load(Query::Sizes { sizes: &sizes }, || whole.at(&engine, &sizes, all))?;
            Ok(Executable { inner, ..self.clone() })
        };
        sized().map_err(|error| error.called_from(site))
    }
}

//! The results of one run.

use std::fmt;
use std::ops::Index;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use streamvm_instructions::{Error, ProgramError, Tensor};

use crate::engine::core::Engine;
use crate::program_cache::loaded::LoadedProgram;
use crate::submit::commit::Submitted;
use crate::ticket::Ticket;

/// The results of one run, by name. They are ordinary tensors, which the run writes: reading one waits for the run.
#[derive(Clone)]
pub struct Fetches {
    pub(super) engine: Weak<Engine>,
    /// The instructions of the run.
    pub(super) submitted: Submitted,
    pub(super) of: Arc<LoadedProgram>,
    /// In the order of the program's fetches.
    pub(super) tensors: SmallVec<[Tensor; 2]>,
}

impl Fetches {
    /// The result with this name; `None` if the program has no such fetch.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|(found, _)| *found == name).map(|(_, tensor)| tensor)
    }

    /// [`get`](Fetches::get) for a name that the program is thought to have.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], which lists the program's fetches, if it has no such fetch.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        if let Some(found) = self.get(name) {
            return Ok(found);
        }
        let program = self.of.compiled.program();
        let known = program.fetches.iter().map(|fetch| fetch.name.clone()).collect();
        let what = format!("there is no fetch {name:?}");
        Err(ProgramError::Unknown { program: program.name.clone(), kind: "fetch", what, known }.into())
    }

    /// The names and results, in the order in which the program was given them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let names = self.of.compiled.program().fetches.iter().map(|fetch| fetch.name.as_str());
        names.zip(&self.tensors)
    }

    /// Takes the results out, in the order of the program's fetches. What is left has none, and can be waited for.
    pub fn take(&mut self) -> Vec<Tensor> {
        std::mem::take(&mut self.tensors).into_vec()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the program has no fetch.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Blocks until the run has passed, as [`Ticket::wait`] does.
    ///
    /// # Errors
    /// As [`Ticket::wait`]: the root cause of a failure names the step of the program and the source line that recorded it. When the engine
    /// is gone, as [`Tensor::wait`] of each result, or [`Error::Shutdown`] without results.
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        match self.engine.upgrade() {
            Some(engine) => {
                let mut ticket = Ticket::new(&engine);
                ticket.submitted = self.submitted.clone();
                ticket.wait()
            }
            None if self.tensors.is_empty() => Err(Error::shutdown()),
            None => {
                for tensor in &self.tensors {
                    tensor.wait()?;
                }
                Ok(())
            }
        }
    }
}

impl Index<&str> for Fetches {
    type Output = Tensor;

    /// # Panics
    /// If the program has no such fetch; [`Fetches::get`] does not panic.
    #[track_caller]
    fn index(&self, name: &str) -> &Tensor {
        let Some(tensor) = self.get(name) else {
            let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
            let program = &self.of.compiled.program().name;
            panic!("program {program:?}: there is no fetch {name:?}; its fetches are {}", names.join(", "))
        };
        tensor
    }
}

impl Index<usize> for Fetches {
    type Output = Tensor;

    /// # Panics
    /// If the program has fewer fetches.
    #[track_caller]
    fn index(&self, place: usize) -> &Tensor {
        &self.tensors[place]
    }
}

impl fmt::Debug for Fetches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

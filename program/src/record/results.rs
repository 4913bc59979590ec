//! The results of a program that was called in a recording, or is run in a list.

use std::fmt;
use std::ops::Index;

use streamvm_instructions::{Error, ProgramError, Tensor};

/// The results of a [call](crate::Recorder::call) or of a run in a list, by name: tensors of the recording, or of the list.
#[derive(Clone)]
pub struct Results {
    pub(super) program: String,
    /// In the order of the program's fetches.
    pub(super) results: Vec<(String, Tensor)>,
}

impl Results {
    /// The results of the program with this name, by their names.
    pub fn new(program: String, results: impl IntoIterator<Item = (String, Tensor)>) -> Results {
        Results { program, results: results.into_iter().collect() }
    }

    /// The result with this name; `None` if the program has no such fetch.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.iter().find(|(found, _)| *found == name).map(|(_, tensor)| tensor)
    }

    /// [`get`](Results::get) for a name that the program is thought to have.
    ///
    /// # Errors
    /// [`ProgramError::Unknown`], which lists the program's fetches, if it has no such fetch.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        if let Some(found) = self.get(name) {
            return Ok(found);
        }
        let known = self.iter().map(|(name, _)| name.to_owned()).collect();
        let (program, what) = (self.program.clone(), format!("there is no fetch {name:?}"));
        Err(ProgramError::Unknown { program, kind: "fetch", what, known }.into())
    }

    /// The names and results, in the order in which the program was given them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.results.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl Index<&str> for Results {
    type Output = Tensor;

    /// # Panics
    /// If the program has no such fetch; [`Results::get`] does not panic.
    fn index(&self, name: &str) -> &Tensor {
        self.tensor(name).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

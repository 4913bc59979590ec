//! Python functions as instructions.

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyTupleMethods};
use streamvm::{FnContext, FnError, Site};

use crate::{elements, errors};

/// A Python function that the engine calls once. It holds the interpreter's lock while it runs, and no longer.
pub(crate) struct PythonFunction {
    function: Py<PyAny>,
    site: Option<Site>,
    /// How many tensors it writes.
    results: usize,
}

impl PythonFunction {
    pub(crate) fn new(function: Py<PyAny>, site: Option<Site>, results: usize) -> PythonFunction {
        PythonFunction { function, site, results }
    }

    /// The same function for another try to submit it.
    pub(crate) fn again(&self) -> PythonFunction {
        Python::attach(|py| PythonFunction { function: self.function.clone_ref(py), ..*self })
    }

    /// Calls it with copies of what it reads, and writes what it returns.
    ///
    /// # Errors
    /// The exception of the function, as a text; the function returned something else than promised; the interpreter has ended.
    pub(crate) fn call(self, context: &mut FnContext<'_>) -> Result<(), FnError> {
        let ended = || FnError::from("the Python interpreter has ended; wait for the work before the program ends");
        Python::try_attach(|py| {
            let arguments = elements::arguments(py, context)?.to_tuple();
            let returned = match self.function.bind(py).call1(arguments) {
                Ok(returned) => returned,
                Err(error) => return Err(errors::keep(py, error, self.site).into()),
            };
            self.write(context, &returned)
        })
        .ok_or_else(ended)?
    }

    fn write(&self, context: &mut FnContext<'_>, returned: &Bound<'_, PyAny>) -> Result<(), FnError> {
        let several = || match returned.cast::<PyTuple>() {
            Ok(tuple) => tuple.len(),
            Err(_) => 1,
        };
        let found = if returned.is_none() { 0 } else { several() };
        if found != self.results {
            return Err(format!("the function returned {found} arrays, and it writes {} tensors", self.results).into());
        }
        for place in 0..self.results {
            match returned.cast::<PyTuple>() {
                Ok(tuple) => elements::write(context, place, &tuple.get_item(place)?)?,
                Err(_) => elements::write(context, place, returned)?,
            }
        }
        Ok(())
    }
}

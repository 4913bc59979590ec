//! Recorded functions: the part of `streamvm.compile` below the signature of a call.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{Error, Executable, Tensor};

use crate::engine::{Engine, PyVm};
use crate::tensor::PyTensor;
use crate::{caller, errors, waiting};

/// A function over tensors that was recorded for tensors of one signature and compiled. `streamvm.compile` makes and keeps them.
#[pyclass(name = "Program", module = "streamvm._core", frozen)]
pub(crate) struct PyProgram {
    /// It keeps no engine alive.
    engine: Weak<Engine>,
    executable: Executable,
    /// The names of the feeds, in the order of the arguments.
    feeds: Vec<String>,
    /// The number of results; `None` if the function returned a tensor and no tuple.
    results: Option<usize>,
}

#[pymethods]
impl PyProgram {
    /// Records `function` over tensors like `feeds`, and compiles what it called.
    #[staticmethod]
    fn record(
        vm: &Bound<'_, PyVm>,
        name: &str,
        function: &Bound<'_, PyAny>,
        feeds: Vec<Bound<'_, PyTensor>>,
    ) -> PyResult<PyProgram> {
        let (py, engine) = (vm.py(), &vm.get().engine);
        let site = caller::site(py)?;
        let _site = site.map(streamvm::Site::enter);
        let names: Vec<String> = (0..feeds.len()).map(|place| format!("argument{place}")).collect();
        // The exception of the function, which the engine does not know.
        let raised: RefCell<Option<PyErr>> = RefCell::new(None);
        let mut results = None;
        let program = engine.vm().record(name, |r| {
            let _recording = Recording::begin(r);
            let mut record = || -> PyResult<Result<(), Error>> {
                let mut arguments = Vec::with_capacity(feeds.len());
                for (name, given) in names.iter().zip(&feeds) {
                    let like = &given.get().tensor;
                    let feed = match r.feed(name.as_str(), like.place(), like.dtype(), like.dims()) {
                        Ok(feed) => feed,
                        Err(error) => return Ok(Err(error)),
                    };
                    arguments.push(PyTensor::new(engine, feed).into_pyobject(py)?);
                }
                let returned = function.call1(PyTuple::new(py, arguments)?)?;
                let tensors: Vec<Py<PyTensor>> = match returned.cast::<PyTensor>() {
                    Ok(one) => vec![one.clone().unbind()],
                    Err(_) => {
                        let several: Vec<Py<PyTensor>> = returned.extract().map_err(|_| {
                            let kind = returned.get_type().name().map_or_else(|_| "unknown type".to_owned(), |name| name.to_string());
                            PyTypeError::new_err(format!("a compiled function returns a tensor, or a tuple of tensors, and this one returned a {kind}"))
                        })?;
                        results = Some(several.len());
                        several
                    }
                };
                let fetch = |(place, tensor): (usize, &Py<PyTensor>)| r.fetch(format!("result{place}"), &tensor.get().tensor);
                Ok(tensors.iter().enumerate().try_for_each(fetch))
            };
            record().unwrap_or_else(|error| {
                *raised.borrow_mut() = Some(error);
                Err(Error::shutdown())
            })
        });
        if let Some(error) = raised.into_inner() {
            return Err(error);
        }
        let program = program.map_err(|error| errors::exception(py, &error, site))?;
        let compiled = py.detach(|| engine.vm().compile(program, &[], &CompileOptions::default()));
        let executable = compiled.map_err(|error| errors::exception(py, &error, site))?;
        Ok(PyProgram { engine: Arc::downgrade(engine), executable, feeds: names, results })
    }

    /// Submits a run, and returns its results at once.
    fn run<'py>(&self, py: Python<'py>, feeds: Vec<Bound<'py, PyTensor>>) -> PyResult<Bound<'py, PyAny>> {
        let Some(engine) = self.engine.upgrade() else {
            return Err(errors::exception(py, &Error::shutdown(), None));
        };
        let feeds: Vec<(&str, &Tensor)> =
            self.feeds.iter().map(String::as_str).zip(feeds.iter().map(|it| &it.get().tensor)).collect();
        let fetched = waiting::call(py, || self.executable.run(&feeds).map(|mut fetches| fetches.take()))?;
        let mut tensors = fetched.into_iter().map(|tensor| PyTensor::new(&engine, tensor).into_pyobject(py));
        match self.results {
            Some(_) => Ok(PyTuple::new(py, tensors.collect::<Result<Vec<_>, _>>()?)?.into_any()),
            None => match tensors.next() {
                Some(tensor) => Ok(tensor?.into_any()),
                None => Err(PyTypeError::new_err("the program has no result")),
            },
        }
    }

    /// Whether its engine exists.
    #[getter]
    fn alive(&self) -> bool {
        self.engine.strong_count() > 0
    }

    /// The compiled plan, as a text.
    fn __str__(&self) -> String {
        self.executable.compiled().to_string()
    }
}

thread_local! {
    /// The recordings that this thread makes, the innermost last.
    static RECORDINGS: RefCell<Vec<Recorder>> = const { RefCell::new(Vec::new()) };
}

/// While it exists, its thread makes a recording.
struct Recording;

impl Recording {
    fn begin(recorder: &Recorder) -> Recording {
        RECORDINGS.with_borrow_mut(|recordings| recordings.push(recorder.clone()));
        Recording
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDINGS.with_borrow_mut(Vec::pop);
    }
}

/// Whether this thread records a function.
#[pyfunction]
pub(crate) fn is_recording() -> bool {
    RECORDINGS.with_borrow(|recordings| !recordings.is_empty())
}

/// The recording that this thread makes, the innermost.
pub(crate) fn recorder() -> Option<Recorder> {
    RECORDINGS.with_borrow(|recordings| recordings.last().cloned())
}

/// # Errors
/// `UsageError`: this thread records a function, in which a new tensor of the engine would be of no use.
pub(crate) fn refuse_while_recording(py: Python<'_>) -> PyResult<()> {
    if is_recording() {
        let text = "a compiled function makes no tensors but from its arguments; give it the tensor as an argument, write a number in its place, or make it of an argument, as by \
                    zeros_like(x)";
        return Err(errors::usage(py, text));
    }
    Ok(())
}

//! Reports of traces, for `streamvm.report`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use streamvm_report::{Comparison, ReadError, Recording, Report, without_controls, write_page};

/// A trace that was read, and what follows from it.
#[pyclass(name = "Recording", module = "streamvm", frozen)]
pub(crate) struct PyRecording {
    file: PathBuf,
    recording: Recording,
    report: Report,
}

#[pymethods]
impl PyRecording {
    #[new]
    fn new(py: Python<'_>, file: PathBuf) -> PyResult<PyRecording> {
        py.detach(|| {
            let opened = File::open(&file).map_err(|error| os_error(&error, &file))?;
            let recording = Recording::read(BufReader::new(opened)).map_err(|error| match error {
                ReadError::Input(error) if error.raw_os_error().is_some() => os_error(&error, &file),
                error => PyValueError::new_err(format!("{}: {error}", file.display())),
            })?;
            let report = Report::of(&recording);
            Ok(PyRecording { file, recording, report })
        })
    }

    /// The report as a text and as JSON; with `before`, an earlier run, that of both, and what differs.
    #[pyo3(signature = (before = None))]
    fn report(&self, py: Python<'_>, before: Option<&PyRecording>) -> PyResult<(String, String)> {
        py.detach(|| match before {
            None => told(&self.report),
            Some(before) => told(&Comparison::of(before.report.clone(), self.report.clone())),
        })
    }

    /// Writes the page of the trace for a browser.
    fn write_page(&self, py: Python<'_>, page: PathBuf) -> PyResult<()> {
        py.detach(|| {
            if let (Ok(trace), Ok(page)) = (self.file.canonicalize(), page.canonicalize())
                && trace == page
            {
                return Err(PyValueError::new_err(format!("the page would overwrite the trace {}", page.display())));
            }
            let title = self.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let written = File::create(&page).and_then(|file| {
                let mut out = BufWriter::new(file);
                write_page(&self.recording, &self.report, (&title, None), &mut out)?;
                out.flush()
            });
            written.map_err(|error| os_error(&error, &page))
        })
    }
}

fn told(report: &(impl ToString + serde::Serialize)) -> PyResult<(String, String)> {
    let json = serde_json::to_string(report).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((without_controls(&report.to_string()).into_owned(), json))
}

/// Of the code of the system Python makes a `FileNotFoundError` and its like.
fn os_error(error: &std::io::Error, path: &Path) -> PyErr {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            let text = text.trim_end_matches(&format!(" (os error {code})")).to_owned();
            PyOSError::new_err((code, text, path.as_os_str().to_os_string()))
        }
        None => PyOSError::new_err(format!("{}: {text}", path.display())),
    }
}

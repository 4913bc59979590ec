//! Reports of traces, for `streamvm.report`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use streamvm_report::{Comparison, ReadError, Recording, Report, write_page};

/// The report of a trace as a text and as JSON; with `before` that of both, and what differs.
#[pyfunction]
pub(crate) fn read_report(py: Python<'_>, trace: PathBuf, before: Option<PathBuf>) -> PyResult<(String, String)> {
    py.detach(|| {
        let after = Report::of(&read(&trace)?);
        match before {
            None => told(&after),
            Some(before) => told(&Comparison::of(Report::of(&read(&before)?), after)),
        }
    })
}

/// Writes the page of a trace for a browser.
#[pyfunction]
pub(crate) fn write_report_page(py: Python<'_>, trace: PathBuf, page: PathBuf) -> PyResult<()> {
    py.detach(|| {
        let recording = read(&trace)?;
        let title = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let written = File::create(&page).and_then(|file| {
            let mut out = BufWriter::new(file);
            write_page(&recording, &Report::of(&recording), (&title, None), &mut out)?;
            out.flush()
        });
        written.map_err(|error| os_error(&error, &page))
    })
}

fn told(report: &(impl ToString + serde::Serialize)) -> PyResult<(String, String)> {
    let json = serde_json::to_string(report).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((report.to_string(), json))
}

fn read(trace: &Path) -> PyResult<Recording> {
    let file = File::open(trace).map_err(|error| os_error(&error, trace))?;
    Recording::read(BufReader::new(file)).map_err(|error| match error {
        ReadError::Input(error) if error.raw_os_error().is_some() => os_error(&error, trace),
        error => PyValueError::new_err(format!("{}: {error}", trace.display())),
    })
}

/// Python makes a `FileNotFoundError` and its like of the code of the system.
fn os_error(error: &std::io::Error, path: &Path) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string(), path.to_path_buf()))
}

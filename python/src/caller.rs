//! The line of the Python program that calls, as the site of what the call submits.

use std::cell::RefCell;
use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use streamvm::Site;

/// A place that has called before: the code is kept, so that no other one gets its address.
struct Line {
    _code: Py<PyAny>,
    /// `None` for a line of this package, whose caller counts.
    site: Option<Site>,
}

/// How many places a thread keeps: a program may make code as long as it runs.
const MOST: usize = 4096;

thread_local! {
    /// By the address of the code and the place in it: a line number takes time in proportion to the lines of the code.
    static LINES: RefCell<HashMap<(usize, i32), Line>> = RefCell::default();
}

/// The line of the Python program that calls; `None` where no line of a program does, as in a thread that only this package runs.
pub(crate) fn site(py: Python<'_>) -> PyResult<Option<Site>> {
    static GET_FRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get_frame = GET_FRAME.import(py, "sys", "_getframe")?;
    let Ok(mut frame) = get_frame.call0() else { return Ok(None) };
    loop {
        if let Some(site) = of_frame(&frame)? {
            return Ok(Some(site));
        }
        frame = frame.getattr(pyo3::intern!(py, "f_back"))?;
        if frame.is_none() {
            return Ok(None);
        }
    }
}

fn of_frame(frame: &Bound<'_, PyAny>) -> PyResult<Option<Site>> {
    let py = frame.py();
    let code = frame.getattr(pyo3::intern!(py, "f_code"))?;
    let place: i32 = frame.getattr(pyo3::intern!(py, "f_lasti"))?.extract()?;
    let key = (code.as_ptr().addr(), place);
    if let Some(known) = LINES.with_borrow(|lines| lines.get(&key).map(|line| line.site)) {
        return Ok(known);
    }
    let file: String = code.getattr("co_filename")?.extract()?;
    let site = if file.starts_with(package(py)?) {
        None
    } else {
        // Code without lines has no number.
        let line: Option<u32> = frame.getattr("f_lineno")?.extract()?;
        Some(Site::in_text(&file, line.unwrap_or(1).max(1), 1, None))
    };
    let line = Line { _code: code.unbind(), site };
    let dropped = LINES.with_borrow_mut(|lines| {
        let full = if lines.len() < MOST { HashMap::new() } else { std::mem::take(lines) };
        lines.insert(key, line);
        full
    });
    // Code may be the last that holds objects of the program, so it goes after the borrow.
    drop(dropped);
    Ok(site)
}

/// The folder of the Python part of this package.
fn package(py: Python<'_>) -> PyResult<&'static str> {
    static FOLDER: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    if let Some(folder) = FOLDER.get() {
        return Ok(folder);
    }
    let folders: Vec<String> = py.import("streamvm")?.getattr("__path__")?.extract()?;
    let folder = folders.into_iter().next().unwrap_or_default();
    Ok(FOLDER.get_or_init(|| folder + std::path::MAIN_SEPARATOR_STR))
}

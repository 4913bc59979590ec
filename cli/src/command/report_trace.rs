//! `streamvm report`: why streams were idle, from a trace with times.

use std::fs::File;
use std::io::{self, BufReader, Seek, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use streamvm_report::{Comparison, ReadError, Recording, Report};

use crate::base::printable::{is_stdin, json_without_controls, printable, where_it_starts, without_controls};
use crate::command::exit::{Exit, written};

/// `streamvm report TRACE` or `streamvm report BEFORE AFTER`; `-` is stdin.
///
/// # Errors
/// Only if `err` cannot be written.
pub fn report_trace(
    trace: &Path,
    after: Option<&Path>,
    json: bool,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<Exit> {
    let Some(first) = read(trace, err)?.map(|recording| Report::of(&recording)) else { return Ok(Exit::Rejected) };
    let text = match after {
        None if json => as_json(&first)?,
        None => first.to_string(),
        Some(after) => {
            let Some(second) = read(after, err)? else { return Ok(Exit::Rejected) };
            let both = Comparison::of(first, Report::of(&second));
            if json { as_json(&both)? } else { both.to_string() }
        }
    };
    // Names and lines are those of the trace, which anybody may have written.
    let text = if json { json_without_controls(text) } else { without_controls(&text).into_owned() };
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(written(result, err)?.unwrap_or(Exit::Fine))
}

/// Reads a trace; says why it cannot.
pub(crate) fn read(path: &Path, err: &mut dyn Write) -> io::Result<Option<Recording>> {
    let name = printable(&path.display().to_string());
    let found = if is_stdin(path) {
        Recording::read(io::stdin().lock())
    } else {
        match File::open(path) {
            Ok(file) => Recording::read(BufReader::with_capacity(1 << 16, file)),
            Err(error) => {
                let help = where_it_starts(path, &error);
                writeln!(err, "{name}: error: cannot read the trace: {error}{help}")?;
                return Ok(None);
            }
        }
    };
    match found {
        Ok(recording) => Ok(Some(recording)),
        Err(error) => {
            writeln!(err, "{name}: error: {error}")?;
            if let ReadError::Input(_) = error {
                writeln!(
                    err,
                    " = help: `streamvm run --trace FILE` writes a trace with times; `streamvm verify` judges what --record writes"
                )?;
            }
            Ok(None)
        }
    }
}

/// The trace of a run whose report is printed at its end: a file without a name, and the first error of writing to it.
#[derive(Debug)]
pub(crate) struct KeptTrace(File, Arc<Mutex<Option<io::Error>>>);

/// Writes to the file of a [`KeptTrace`].
#[derive(Debug)]
pub(crate) struct KeptWriter(File, Arc<Mutex<Option<io::Error>>>);

impl KeptWriter {
    /// After an error nothing more is written. A trace that is written elsewhere, too, goes on.
    fn write(&mut self, bytes: &[u8]) {
        let mut failed = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            *failed = self.0.write_all(bytes).err();
        }
    }
}

impl KeptTrace {
    /// A file, and its writer.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn begin() -> io::Result<(KeptTrace, KeptWriter)> {
        let (file, failed) = (tempfile::tempfile()?, Arc::default());
        Ok((KeptTrace(file.try_clone()?, Arc::clone(&failed)), KeptWriter(file, failed)))
    }

    /// The report, once the engine is over.
    ///
    /// # Errors
    /// The message about a trace that could not be kept or read.
    pub(crate) fn report(self) -> Result<String, String> {
        let KeptTrace(mut file, failed) = self;
        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let read = || {
            failed.map_or(Ok(()), Err)?;
            file.rewind()?;
            Recording::read(BufReader::new(file))
        };
        match read() {
            Ok(recording) => Ok(without_controls(&Report::of(&recording).to_string()).into_owned()),
            Err(ReadError::NoInstruction) => Ok("no instruction ran, so there is nothing to report\n".to_owned()),
            Err(error) => Err(format!("error: no report: the trace that it needs could not be kept: {error}")),
        }
    }
}

/// Writes the trace of a run to the file that an option names, and to that of [`KeptTrace`].
#[derive(Debug)]
pub(crate) struct Both<W>(Option<W>, Option<KeptWriter>);

/// A writer to those of both that are there; `None` if none is.
pub(crate) fn both<W: Write>(named: Option<W>, kept: Option<KeptWriter>) -> Option<Both<W>> {
    (named.is_some() || kept.is_some()).then_some(Both(named, kept))
}

impl<W: Write> Write for Both<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(kept) = &mut self.1 {
            kept.write(bytes);
        }
        self.0.as_mut().map_or(Ok(()), |named| named.write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

fn as_json(value: &impl Serialize) -> io::Result<String> {
    Ok(format!("{:#}\n", serde_json::to_value(value)?))
}

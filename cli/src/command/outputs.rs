//! The output files that options name: instruction lists, a trace, a profile.
//!
//! All files are begun before the run, so that a file that cannot be written is reported at once. They are put in their places at
//! the end, even if the script failed, because they show what the script did until then.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::engine::Profile;
use crate::base::printable::printable;
use crate::command::report::profile_json;
use crate::command::script_options::ScriptOptions;
use crate::execute::dump::Dump;
use crate::files::output::OutputFile;

/// The outcome of writing a trace, final once the engine is dropped.
type Written = Arc<Mutex<io::Result<()>>>;

/// The writer of the trace. The engine goes on without a trace that cannot be written, so it keeps its first error.
pub(crate) struct TraceWriter<W = BufWriter<File>> {
    inner: W,
    written: Written,
}

impl<W> TraceWriter<W> {
    fn kept<T>(&self, result: io::Result<T>) -> io::Result<T> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Err(error), Ok(())) = (&result, &*written) {
            *written = Err(io::Error::new(error.kind(), error.to_string()));
        }
        result
    }
}

impl<W: Write> Write for TraceWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.inner.write_all(bytes).map(|()| bytes.len());
        self.kept(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.kept(result)
    }
}

/// The output files of one run. Each message about them is one line, without its end.
pub(crate) struct Outputs {
    pub(crate) dump: Option<Dump>,
    dump_path: PathBuf,
    trace: Option<Trace>,
    profile: Option<(PathBuf, OutputFile)>,
}

struct Trace {
    path: PathBuf,
    output: OutputFile,
    written: Written,
}

impl Outputs {
    /// Begins the files that the options name, and returns the writer of the trace, if a trace is recorded.
    ///
    /// # Errors
    /// The message about a file that cannot be written.
    pub(crate) fn begin(options: &ScriptOptions) -> Result<(Outputs, Option<TraceWriter>), String> {
        let dump_path = options.dump_ir.clone().unwrap_or_default();
        let dump = options.dump_ir.as_deref().map(Dump::create).transpose();
        let dump = dump.map_err(|error| cannot_dump(&dump_path, &error))?;
        let trace = options.record.as_deref().map(|path| Trace::create(path)).transpose()?;
        let (trace, writer) = trace.unzip();
        let begun = |path: &PathBuf| OutputFile::create(path).map(|file| (path.clone(), file));
        let profile = match options.profile_json.as_ref().map(|path| (path, begun(path))) {
            Some((path, Err(error))) => return Err(cannot_profile(path, &error)),
            Some((_, Ok(profile))) => Some(profile),
            None => None,
        };
        Ok((Outputs { dump, dump_path, trace, profile }, writer))
    }

    /// Puts the files in their places. Call it after the engine is dropped, which completes the trace. Returns a message for each
    /// file that could not be written.
    pub(crate) fn finish(self, profile: &Profile) -> Vec<String> {
        let mut messages = Vec::new();
        if let Some(Err(error)) = self.dump.map(Dump::finish) {
            messages.push(cannot_dump(&self.dump_path, &error));
        }
        if let Some((path, output)) = self.profile
            && let Err(error) = write_profile(output, profile)
        {
            messages.push(cannot_profile(&path, &error));
        }
        messages.extend(self.trace.and_then(Trace::finish));
        messages
    }
}

fn write_profile(output: OutputFile, profile: &Profile) -> io::Result<()> {
    writeln!(output.file()?, "{}", profile_json(profile))?;
    output.finish()
}

impl Trace {
    fn create(path: &Path) -> Result<(Trace, TraceWriter), String> {
        let begin = || {
            let output = OutputFile::create(path)?;
            let file = output.file()?;
            Ok((output, file))
        };
        let (output, file) = begin().map_err(|error| cannot_record(path, &error))?;
        let written = Written::new(Mutex::new(Ok(())));
        let writer = TraceWriter { inner: BufWriter::new(file), written: written.clone() };
        Ok((Trace { path: path.to_owned(), output, written }, writer))
    }

    /// Puts the trace in its place. Returns a message if the trace is incomplete.
    fn finish(self) -> Option<String> {
        let written = std::mem::replace(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner), Ok(()));
        written.and_then(|()| self.output.finish()).err().map(|error| cannot_record(&self.path, &error))
    }
}

fn cannot(path: &Path, what: &str, error: &io::Error) -> String {
    format!("{}: error: cannot write {what}: {error}", printable(&path.display().to_string()))
}

fn cannot_record(path: &Path, error: &io::Error) -> String {
    cannot(path, "the trace", error)
}

fn cannot_profile(path: &Path, error: &io::Error) -> String {
    cannot(path, "the profile", error)
}

pub(crate) fn cannot_dump(path: &Path, error: &io::Error) -> String {
    cannot(path, "the instruction list", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept() {
        let written: Written = Arc::new(Mutex::new(Ok(())));
        let full: &mut [u8] = &mut [0; 4];
        let mut writer = TraceWriter { inner: full, written: written.clone() };
        assert!(writer.write_all(b"{\"streamvm_trace\":1}\n").is_err());
        assert_eq!(written.lock().unwrap().as_ref().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}

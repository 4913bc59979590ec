//! The output files that options name: instruction lists, traces, a profile.
//!
//! All files are begun before the run, so that a file that cannot be written is reported at once. They are put in their places at
//! the end, even if the script failed, because they show what the script did until then.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::engine::{Error, Profile};
use crate::base::printable::printable;
use crate::command::report::profile_json;
use crate::command::script_options::ScriptOptions;
use crate::execute::dump::Dump;
use crate::files::output::{OutputFile, Unfinished};

/// The file of a trace, and the outcome of writing it, which is final once the engine is dropped.
#[derive(Debug)]
struct Sink<W> {
    inner: W,
    written: io::Result<()>,
}

/// The writer of the trace. The engine goes on without a trace that cannot be written, so it keeps its first error.
#[derive(Debug)]
pub(crate) struct TraceWriter<W = BufWriter<File>>(Arc<Mutex<Sink<W>>>);

impl<W> Clone for TraceWriter<W> {
    fn clone(&self) -> TraceWriter<W> {
        TraceWriter(self.0.clone())
    }
}

impl<W: Write> TraceWriter<W> {
    fn new(inner: W) -> TraceWriter<W> {
        TraceWriter(Arc::new(Mutex::new(Sink { inner, written: Ok(()) })))
    }

    fn sink(&self) -> MutexGuard<'_, Sink<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act<T>(&self, act: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        let mut sink = self.sink();
        let result = act(&mut sink.inner);
        if let (Err(error), Ok(())) = (&result, &sink.written) {
            sink.written = Err(io::Error::new(error.kind(), error.to_string()));
        }
        result
    }

    /// Takes the first error.
    fn outcome(&self) -> io::Result<()> {
        std::mem::replace(&mut self.sink().written, Ok(()))
    }
}

impl<W: Write> Write for TraceWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.act(|inner| inner.write_all(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.act(Write::flush)
    }
}

/// The output files of one run. Each message about them is one line, without its end.
pub(crate) struct Outputs {
    pub(crate) dump: Option<Dump>,
    dump_path: PathBuf,
    traces: Vec<Trace>,
    profile: Option<(PathBuf, OutputFile)>,
}

/// The writers of the traces of a run.
pub(crate) struct TraceWriters {
    /// Of `--record`.
    pub(crate) record: Option<TraceWriter>,
    /// Of `--trace`.
    pub(crate) trace: Option<TraceWriter>,
    /// The file that the engine writes the last time of a run to, if it is told so, until it is put in its place.
    pub(crate) last: Option<PathBuf>,
}

struct Trace {
    path: PathBuf,
    output: OutputFile,
    /// `None` if the engine writes the file itself, at the end of a run.
    writer: Option<TraceWriter>,
    /// Whether the engine has done so.
    is_written: bool,
}

impl Outputs {
    /// Begins the files that the options name, and returns the writers of traces.
    ///
    /// # Errors
    /// The message about a file that cannot be written.
    pub(crate) fn begin(options: &ScriptOptions) -> Result<(Outputs, TraceWriters), String> {
        let dump_path = options.dump_ir.clone().unwrap_or_default();
        let dump = options.dump_ir.as_deref().map(Dump::create).transpose();
        let dump = dump.map_err(|error| cannot_dump(&dump_path, &error))?;
        let mut traces = Vec::new();
        let mut writer = |path: &Option<PathBuf>| -> Result<Option<TraceWriter>, String> {
            let (trace, writer) = path.as_deref().map(Trace::create).transpose()?.unzip();
            traces.extend(trace);
            Ok(writer)
        };
        let record = writer(&options.record)?;
        let writers = match (&options.trace, options.trace_last) {
            (Some(path), Some(_)) => {
                let output = OutputFile::create(path).map_err(|error| cannot_record(path, &error))?;
                let last = Some(output.path().to_owned());
                traces.push(Trace { path: path.clone(), output, writer: None, is_written: false });
                TraceWriters { record, trace: None, last }
            }
            (path, _) => TraceWriters { record, trace: writer(path)?, last: None },
        };
        let begun = |path: &PathBuf| OutputFile::create(path).map(|file| (path.clone(), file));
        let profile = match options.profile_json.as_ref().map(|path| (path, begun(path))) {
            Some((path, Err(error))) => return Err(cannot_profile(path, &error)),
            Some((_, Ok(profile))) => Some(profile),
            None => None,
        };
        Ok((Outputs { dump, dump_path, traces, profile }, writers))
    }

    /// What is left to write if a signal ends the run.
    ///
    /// # Errors
    /// The message about a profile that cannot be written.
    pub(crate) fn parts(&self) -> Result<Parts, String> {
        let what = |path: &Path, what: &str| format!("{}: {what}", printable(&path.display().to_string()));
        let of_trace =
            |trace: &Trace| (trace.writer.clone(), trace.output.unfinished(), what(&trace.path, "the trace"));
        let traces = self.traces.iter().map(of_trace).collect();
        let of_profile = |(path, output): &(PathBuf, OutputFile)| {
            let file = output.file().map_err(|error| cannot_profile(path, &error))?;
            Ok::<_, String>((file, output.unfinished(), what(path, "the profile")))
        };
        Ok(Parts { traces, profile: self.profile.as_ref().map(of_profile).transpose()? })
    }

    /// Says how the engine has written the last time of a run: only a trace that it has written takes its place, also if a signal ends the command now.
    ///
    /// # Errors
    /// The message about the trace that could not be written.
    pub(crate) fn last_is_written(&mut self, outcome: Result<(), Error>) -> Result<(), String> {
        let Some(trace) = self.traces.iter_mut().find(|trace| trace.writer.is_none()) else { return Ok(()) };
        match outcome {
            Ok(()) => {
                trace.is_written = true;
                trace.output.unfinished().keep(&format!("{}: the trace", printable(&trace.path.display().to_string())));
                Ok(())
            }
            // Its file is a temporary one.
            Err(Error::NoTrace { reason, .. }) => Err(cannot_record(&trace.path, &io::Error::other(reason))),
            Err(error) => Err(format!("error: {error}")),
        }
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
        messages.extend(self.traces.into_iter().filter_map(Trace::finish));
        messages
    }
}

/// The files of a run as a signal ends it: each with what names it in messages.
pub(crate) struct Parts {
    traces: Vec<(Option<TraceWriter>, Unfinished, String)>,
    profile: Option<(File, Unfinished, String)>,
}

impl Parts {
    /// Keeps the trace of the last time of the run, which the engine has written.
    pub(crate) fn keep_last(&self) {
        self.traces
            .iter()
            .filter(|(writer, ..)| writer.is_none())
            .for_each(|(_, unfinished, what)| unfinished.keep(what));
    }

    /// Writes out the lines and packets of the traces so far, all of them whole. The engine writes no further one.
    pub(crate) fn keep_traces(&self) {
        for (writer, unfinished, what) in &self.traces {
            let Some(writer) = writer else { continue };
            let mut sink = writer.sink();
            if sink.written.is_ok() && sink.inner.flush().is_ok() {
                unfinished.keep(what);
            }
            // The process ends without giving the lock back.
            std::mem::forget(sink);
        }
    }

    /// Writes the profile so far.
    pub(crate) fn keep_profile(&mut self, profile: &Profile) {
        let Some((file, unfinished, what)) = &mut self.profile else { return };
        if writeln!(file, "{}", profile_json(profile)).is_ok() {
            unfinished.keep(what);
        }
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
        let writer = TraceWriter::new(BufWriter::new(file));
        Ok((Trace { path: path.to_owned(), output, writer: Some(writer.clone()), is_written: false }, writer))
    }

    /// Puts the trace in its place. Returns a message if the trace is incomplete.
    fn finish(self) -> Option<String> {
        if self.writer.is_none() && !self.is_written {
            return None;
        }
        let outcome = self.writer.map_or(Ok(()), |writer| writer.outcome());
        outcome.and_then(|()| self.output.finish()).err().map(|error| cannot_record(&self.path, &error))
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
        let full: &mut [u8] = &mut [0; 4];
        let mut writer = TraceWriter::new(full);
        assert!(writer.write_all(b"{\"streamvm_trace\":1}\n").is_err());
        assert_eq!(writer.outcome().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}

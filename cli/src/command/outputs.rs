//! The output files that options name: instruction lists, a trace, a profile.
//!
//! All files are begun before the run, so that a file that cannot be written is reported at once. They are put in their places at
//! the end, even if the script failed, because they show what the script did until then.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::base::engine::Profile;
use crate::base::printable::printable;
use crate::command::report::profile_json;
use crate::command::script_options::ScriptOptions;
use crate::execute::dump::Dump;
use crate::execute::locations::{LocationWriter, Locations, Written};
use crate::files::output::OutputFile;
use crate::syntax::source::Source;

/// The writer of the trace.
pub(crate) type TraceWriter = LocationWriter<BufWriter<File>>;

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
    locations: Locations,
    written: Written,
}

impl Outputs {
    /// Begins the files that the options name, and returns the writer of the trace, if a trace is recorded.
    ///
    /// # Errors
    /// The message about a file that cannot be written.
    pub(crate) fn begin(options: &ScriptOptions, source: &Source) -> Result<(Outputs, Option<TraceWriter>), String> {
        let dump_path = options.dump_ir.clone().unwrap_or_default();
        let dump = options.dump_ir.as_deref().map(Dump::create).transpose();
        let dump = dump.map_err(|error| cannot_dump(&dump_path, &error))?;
        let trace = options.record.as_deref().map(|path| Trace::create(path, source)).transpose()?;
        let (trace, writer) = trace.unzip();
        let begun = |path: &PathBuf| OutputFile::create(path).map(|file| (path.clone(), file));
        let profile = match options.profile_json.as_ref().map(|path| (path, begun(path))) {
            Some((path, Err(error))) => return Err(cannot_profile(path, &error)),
            Some((_, Ok(profile))) => Some(profile),
            None => None,
        };
        Ok((Outputs { dump, dump_path, trace, profile }, writer))
    }

    /// Where the statement of each instruction is noted, if a trace is recorded.
    pub(crate) fn locations(&self) -> Option<Locations> {
        self.trace.as_ref().map(|trace| trace.locations.clone())
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
    fn create(path: &Path, source: &Source) -> Result<(Trace, TraceWriter), String> {
        let begin = || {
            let output = OutputFile::create(path)?;
            let file = output.file()?;
            Ok((output, file))
        };
        let (output, file) = begin().map_err(|error| cannot_record(path, &error))?;
        let (locations, written) = (Locations::new(source), Written::new(Mutex::new(Ok(()))));
        let writer = LocationWriter::new(BufWriter::new(file), locations.clone(), written.clone());
        Ok((Trace { path: path.to_owned(), output, locations, written }, writer))
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

//! [`TraceConfig`]: where the trace of an engine goes.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm_instructions::Error;

/// The environment variable that names the file of the trace of an engine that was not told where to write one.
const TRACE: &str = "STREAMVM_TRACE";

/// The engines that have written traces because of the variable.
static ENGINES: AtomicUsize = AtomicUsize::new(0);

/// Where the trace of an engine goes: [`VmBuilder::trace`](crate::VmBuilder::trace).
pub struct TraceConfig {
    sink: Sink,
}

enum Sink {
    File(PathBuf),
    Writer(Box<dyn Write + Send>),
}

impl TraceConfig {
    /// To a file, which is created, or emptied if it exists.
    pub fn to_file(path: impl Into<PathBuf>) -> TraceConfig {
        TraceConfig { sink: Sink::File(path.into()) }
    }

    /// To a writer. A thread of the engine calls it, always with whole packets. It must not wait for the engine, whose end waits for it.
    pub fn to_writer(writer: impl Write + Send + 'static) -> TraceConfig {
        TraceConfig { sink: Sink::Writer(Box::new(writer)) }
    }

    /// What the environment asks for. The first engine of a process writes to the file that the variable names, and the others to files with `.2` and so on behind
    /// that name.
    pub(crate) fn of_environment() -> Option<TraceConfig> {
        let mut path: OsString = env::var_os(TRACE).filter(|path| !path.is_empty())?;
        let number = ENGINES.fetch_add(1, Ordering::Relaxed) + 1;
        if number > 1 {
            path.push(format!(".{number}"));
        }
        Some(TraceConfig::to_file(path))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Error::NoTrace`].
    pub(crate) fn open(self) -> Result<Box<dyn Write + Send>, Error> {
        let failed = |path: &Path, error: std::io::Error| Error::NoTrace {
            file: path.display().to_string(),
            reason: error.to_string(),
        };
        match self.sink {
            Sink::File(path) => match File::create(&path) {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => Err(failed(&path, error)),
            },
            Sink::Writer(writer) => Ok(writer),
        }
    }
}

impl fmt::Debug for TraceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sink = match &self.sink {
            Sink::File(path) => format!("file {}", path.display()),
            Sink::Writer(_) => "a writer".to_owned(),
        };
        f.debug_struct("TraceConfig").field("sink", &sink).finish()
    }
}

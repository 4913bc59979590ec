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

    /// Reads the variable of the environment. The first engine of a process writes to the file that it names, and the others to files whose names end with `.2`
    /// and so on.
    pub(crate) fn of_environment() -> Option<TraceConfig> {
        let path = env::var_os(TRACE).filter(|path| !path.is_empty())?;
        Some(TraceConfig::to_file(path_of(path, ENGINES.fetch_add(1, Ordering::Relaxed) + 1)))
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

/// The file of the engine of this number, from 1.
fn path_of(mut path: OsString, number: usize) -> OsString {
    if number > 1 {
        path.push(format!(".{number}"));
    }
    path
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_of_a_process_has_a_file_of_its_own() {
        let files = [1, 2, 3].map(|number| path_of("a.pftrace".into(), number));
        assert_eq!(files, ["a.pftrace", "a.pftrace.2", "a.pftrace.3"]);
    }
}

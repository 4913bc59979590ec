//! [`TraceConfig`]: where the trace of an engine goes.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use streamvm_instructions::Error;

use crate::engine::trace_out::{OpenTrace, TraceOut};

/// The environment variable that names the file of the trace of an engine that was not told where to write one.
const TRACE: &str = "STREAMVM_TRACE";

/// The environment variable that tells how many seconds such an engine keeps in memory, if it is a flight recorder.
const LAST: &str = "STREAMVM_TRACE_LAST";

/// The engines that have written traces because of the variable.
static ENGINES: AtomicUsize = AtomicUsize::new(0);

/// Where the trace of an engine goes, and when: [`VmBuilder::trace`](crate::VmBuilder::trace).
pub struct TraceConfig {
    sink: Sink,
    last: Option<Duration>,
}

enum Sink {
    File(PathBuf),
    Writer(Box<dyn Write + Send>),
}

impl TraceConfig {
    /// To a file, which is created, or emptied if it exists.
    pub fn to_file(path: impl Into<PathBuf>) -> TraceConfig {
        TraceConfig { sink: Sink::File(path.into()), last: None }
    }

    /// To a writer. A thread of the engine calls it, always with whole packets. It must not wait for the engine, whose end waits for it.
    pub fn to_writer(writer: impl Write + Send + 'static) -> TraceConfig {
        TraceConfig { sink: Sink::Writer(Box::new(writer)), last: None }
    }

    /// Makes the trace a flight recorder: what happened within this time before the last instruction that has ended, and at most the last 262,144 events (two for an instruction on a GPU), is kept in memory
    /// (about 30 MB), and for the same time how much memory was in use (at most 262,144 values, 8 MB). It is written at the first failure of an instruction, when a [stall](crate::VmBuilder::stall_after) is reported, when a panic drops the engine, and
    /// at each [`Vm::write_trace`](crate::Vm::write_trace), after which the next failure is written again. It also shows the oldest instruction of each stream that had not passed then. Each trace replaces
    /// what the file has; a writer gets one after the other, and is flushed after each: it must keep them apart, as each is a file for Perfetto.
    #[must_use]
    pub fn last(mut self, time: Duration) -> TraceConfig {
        self.last = Some(time);
        self
    }

    /// Reads the variables of the environment. The first engine of a process writes to the file that `STREAMVM_TRACE` names, and the others to files whose names end with `.2`
    /// and so on.
    ///
    /// # Errors
    /// [`Error::NoTrace`] if `STREAMVM_TRACE_LAST` is no number of seconds.
    pub(crate) fn of_environment() -> Result<Option<TraceConfig>, Error> {
        let Some(path) = env::var_os(TRACE).filter(|path| !path.is_empty()) else { return Ok(None) };
        let last = last_of(&env::var_os(LAST).unwrap_or_default().to_string_lossy())
            .map_err(|reason| Error::NoTrace { file: path.display().to_string(), reason })?;
        let config = TraceConfig::to_file(path_of(path, ENGINES.fetch_add(1, Ordering::Relaxed) + 1));
        Ok(Some(TraceConfig { last, ..config }))
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Error::NoTrace`].
    pub(crate) fn open(self) -> Result<OpenTrace, Error> {
        let (out, name) = match self.sink {
            Sink::File(path) => {
                let name = path.display().to_string();
                // What a flight recorder has written before the program was started anew stays until there is something else to write.
                let open = File::options().write(true).create(true).truncate(self.last.is_none()).open(&path);
                match open {
                    Ok(file) => (TraceOut::File(file), name),
                    Err(error) => {
                        let reason =
                            format!("{error}; give a file that can be created, or build the engine without a trace");
                        return Err(Error::NoTrace { file: name, reason });
                    }
                }
            }
            Sink::Writer(writer) => (TraceOut::Writer(writer), "the writer of the program".to_owned()),
        };
        Ok(OpenTrace { out, name, last: self.last })
    }
}

/// The time that `STREAMVM_TRACE_LAST` names: `None` if it is unset or empty.
fn last_of(text: &str) -> Result<Option<Duration>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map(Some)
        .ok_or_else(|| format!("{LAST} is {text:?}, which is no number of seconds above 0, such as 10 or 0.5"))
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
        f.debug_struct("TraceConfig").field("sink", &sink).field("last", &self.last).finish()
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

    #[test]
    fn the_time_of_a_flight_recorder_is_a_number_of_seconds() {
        assert_eq!(last_of(""), Ok(None));
        assert_eq!(last_of("0.5"), Ok(Some(Duration::from_millis(500))));
        for wrong in ["0", "-1", "ten", "inf", "NaN", "1e300"] {
            assert!(last_of(wrong).is_err_and(|reason| reason.contains(wrong)), "{wrong}");
        }
    }
}

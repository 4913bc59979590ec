//! The output of a trace with times.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::time::Duration;

/// A trace whose output is open.
pub(crate) struct OpenTrace {
    pub(crate) out: TraceOut,
    /// What messages call it.
    pub(crate) name: String,
    /// The time that is kept in memory, of a flight recorder.
    pub(crate) last: Option<Duration>,
}

/// The output of a trace.
pub(crate) enum TraceOut {
    File(File),
    Writer(Box<dyn Write + Send>),
}

impl TraceOut {
    /// Writes a whole trace. It takes the place of what a file has; a writer, a pipe or a device gets one trace after the other.
    pub(crate) fn replace(&mut self, trace: &[u8]) -> io::Result<()> {
        if let TraceOut::File(file) = self
            && file.metadata()?.is_file()
        {
            file.set_len(0)?;
            file.rewind()?;
        }
        self.write_all(trace)?;
        self.flush()
    }
}

impl Write for TraceOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            TraceOut::File(file) => file.write(bytes),
            TraceOut::Writer(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            TraceOut::File(file) => file.flush(),
            TraceOut::Writer(writer) => writer.flush(),
        }
    }
}

//! The exit codes of the command.

use std::io::{self, Write};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Success: 0.
    Fine,
    /// The script ran and a part of it failed, a trace is not in order, or buffers do not fit into the capacity: 1.
    Failed,
    /// The script was refused before it ran, or the trace or the buffers could not be read: 2. Wrong arguments end with the same code.
    Rejected,
}

impl Exit {
    /// The exit code of the process.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Failed => 1,
            Self::Rejected => 2,
        }
    }
}

/// The exit for output that could not be written. A reader that has closed the pipe gets no message.
///
/// # Errors
/// Only if `err` cannot be written.
pub fn written(result: io::Result<()>, err: &mut dyn Write) -> io::Result<Option<Exit>> {
    let Err(error) = result else { return Ok(None) };
    if error.kind() != io::ErrorKind::BrokenPipe {
        writeln!(err, "error: cannot write the output: {error}")?;
    }
    Ok(Some(Exit::Failed))
}

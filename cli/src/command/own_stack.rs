//! The thread that does the work of the command, on a stack of its own.
//!
//! The stack of the main thread is what the user's shell allows, which may be too small for a script that nests deep.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;

use crate::command::exit::Exit;

/// The size of the stack, in bytes. A script nests 64 deep at most, which takes a few hundred KiB; unused stack takes no memory.
const STACK: usize = 8 << 20;

/// Runs `work` on the thread, and waits for it. A panic goes on in the calling thread.
#[must_use]
pub fn on_own_stack(work: fn() -> ExitCode) -> ExitCode {
    let started = thread::Builder::new().name("streamvm-command".to_owned()).stack_size(STACK).spawn(work);
    match started.map(thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            // If stderr cannot be written either, only the exit code reports the error.
            let _ = writeln!(io::stderr(), "error: no thread can be started: {error}");
            ExitCode::from(Exit::Failed.code())
        }
    }
}

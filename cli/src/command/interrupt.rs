//! Writes what there is of a run when a signal ends it.
//!
//! A thread waits for SIGINT and SIGTERM. When one comes, another thread writes what there is: the trace, the profile, the counts. Then the files that
//! are still being written are removed or put in their places, and the process ends by the signal, as it would without all this. Both threads
//! leave the run alone, which may be in a kernel that takes long: it ends with the process. A second signal, or two seconds, end the process
//! without what has not been written by then.
//!
//! SIGXFSZ, which says that a file has the size that the shell allows, ends nothing: the write fails, and its error is told like any other.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Writes what there is of a run. The text is the name of the signal.
type Diagnose = Box<dyn FnOnce(&str) + Send>;

/// Says what the process does if a signal ends it.
struct State {
    diagnose: Option<Diagnose>,
    is_ending: bool,
}

static STATE: Mutex<State> = Mutex::new(State { diagnose: None, is_ending: false });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives, a signal makes the process write what there is of a run.
#[must_use]
pub(crate) struct Armed(());

/// Calls `diagnose` if a signal ends the process before the result is dropped.
pub(crate) fn arm(diagnose: impl FnOnce(&str) + Send + 'static) -> Armed {
    state().diagnose = Some(Box::new(diagnose));
    Armed(())
}

impl Drop for Armed {
    /// Does not return if a signal is ending the process: the thread that writes has the files.
    fn drop(&mut self) {
        let mut state = state();
        state.diagnose = None;
        let is_ending = state.is_ending;
        drop(state);
        if is_ending {
            loop {
                thread::park();
            }
        }
    }
}

/// Prints a message. The process ends, so it does not matter whether that fails.
pub(crate) fn tell(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

#[cfg(unix)]
pub use unix::watch;

#[cfg(unix)]
mod unix {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::{Duration, Instant};

    use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::iterator::Signals;
    use signal_hook::{flag, low_level};

    use super::{io, state, thread};
    use crate::files::output::end_unfinished;

    /// How long the process writes after a signal. What it writes is in memory, so it takes far less, unless nothing reads its output.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// How often the thread looks for a second signal.
    const POLL: Duration = Duration::from_millis(20);

    /// Starts the thread that waits for signals. Signals that the process was started to ignore, as by `nohup`, stay ignored.
    ///
    /// # Errors
    /// The system refuses a thread or a pipe.
    pub fn watch() -> io::Result<()> {
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let ends: Vec<i32> = [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)).collect();
        let mut signals = Signals::new(ends)?;
        let wait = move || {
            if let Some(signal) = signals.forever().next() {
                end(signal, &mut signals);
            }
        };
        thread::Builder::new().name("streamvm-signals".to_owned()).spawn(wait).map(drop)
    }

    fn end(signal: i32, signals: &mut Signals) {
        let diagnose = {
            let mut state = state();
            state.is_ending = true;
            state.diagnose.take()
        };
        if let Some(diagnose) = diagnose {
            let (done, is_done) = channel::<()>();
            let name = low_level::signal_name(signal).unwrap_or("a signal");
            let write = move || {
                diagnose(name);
                drop(done);
            };
            if thread::Builder::new().name("streamvm-diagnostics".to_owned()).spawn(write).is_ok() {
                let begun = Instant::now();
                while is_done.recv_timeout(POLL) == Err(RecvTimeoutError::Timeout)
                    && begun.elapsed() < PATIENCE
                    && signals.pending().next().is_none()
                {}
            }
        }
        end_unfinished();
        // It returns only if the system refuses the default effect of the signal.
        let _ = low_level::emulate_default_handler(signal);
    }

    /// Whether the process ignores a signal since its start, where `/proc` tells.
    fn is_ignored(signal: i32) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask & (1 << (signal - 1)) != 0
    }
}

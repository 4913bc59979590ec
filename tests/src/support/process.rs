//! Runs tests that need a process of their own, because they exit early or abort.

use std::env;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Runs an ignored test of the calling test program in its own process, with `variables` added to its environment.
///
/// # Errors
/// The exit status of a process that failed or aborted, or a message that the process ran longer than `time` and was killed.
///
/// # Panics
/// If the process cannot be started.
pub fn run_alone(test: &str, variables: &[(&str, &str)], time: Duration) -> Result<(), String> {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored"]).stdout(Stdio::null()).envs(variables.iter().copied());
    let mut child = command.spawn().expect("it runs");
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is a child of this process") {
            return if status.success() { Ok(()) } else { Err(format!("{test}: {status}")) };
        }
        if start.elapsed() > time {
            child.kill().expect("it is ended");
            let _ = child.wait();
            return Err(format!("{test}: the process is not over after {time:?}"));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

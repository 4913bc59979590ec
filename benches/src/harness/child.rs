//! Child processes: this program once more, for one run of one case, with its own peak of memory or on one core.
//!
//! The parent passes the case in hidden arguments. The child answers on its standard output with one line of JSON per sample:
//! `["metric", "unit", value]`. Programs in other languages can answer in the same form. A child that does not answer in time is
//! killed.

use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Deserializer;

use crate::harness::case::Sample;
use crate::harness::error::Error;

/// The hidden argument that names the case.
pub const CHILD: &str = "--child";

/// How long a child may take: 40 times the longest measured time, 7 s on two cores (the random workload on StarPU, 13 µs an operation),
/// since other machines are slower and busier. A peer that hangs costs this time once, and is left out of the rest of the run.
const LIMIT: Duration = Duration::from_secs(300);

/// The command that starts this program again to measure the case `case` once; [`ask`] runs it.
///
/// # Errors
/// The operating system does not give the path of this program.
pub fn again(case: &str, quick: bool, one_core: bool) -> Result<Command, Error> {
    let system = |source| Error::System { what: "finding this program", source };
    let mut command = Command::new(std::env::current_exe().map_err(system)?);
    command.args([CHILD, case]).args(quick.then_some("--quick")).args(one_core.then_some("--one-core"));
    Ok(command)
}

/// Runs `command`, which measures `case`, and reads its answer. Blocks for 300 s at most; then the process is killed.
///
/// # Errors
/// The process could not be started, took too long, failed, or gave no valid answer.
pub fn ask(case: &str, command: &mut Command) -> Result<Vec<Sample>, Error> {
    ask_within(LIMIT, case, command)
}

fn ask_within(limit: Duration, case: &str, command: &mut Command) -> Result<Vec<Sample>, Error> {
    let failed = |reason: String| Error::Child { case: case.to_owned(), reason };
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| failed(format!("it could not be started: {error}")))?;
    let output = output_within(limit, child).map_err(|error| failed(format!("it could not be watched: {error}")))?;
    let Some(output) = output else {
        return Err(failed(format!(
            "it was stopped after {limit:?}, its answer not complete; run {command:?} by itself to see where it hangs"
        )));
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Err(failed(format!("it ended with {}: {last}", output.status)));
    }
    match read(&output.stdout) {
        Ok(samples) if samples.is_empty() => Err(failed("its answer is empty".to_owned())),
        Ok(samples) => Ok(samples),
        Err(error) => Err(failed(format!("its answer cannot be read: {error}"))),
    }
}

/// The output of a child that has ended. After `limit` the child is killed and the result is `None`.
fn output_within(limit: Duration, mut child: Child) -> io::Result<Option<Output>> {
    // The child is killed by its pidfd: once the child has ended, its process id may belong to another process.
    let handle = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(error) => return child.kill().and(Err(error.into())),
    };
    let (sender, receiver) = mpsc::channel();
    // The thread is not joined: a process that the child has left behind may hold its pipes open.
    thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => output.map(Some),
        Err(_) => {
            // An error means that the child has just ended.
            let _ = pidfd_send_signal(handle, Signal::KILL);
            Ok(None)
        }
    }
}

/// The answer of a child, as text.
///
/// # Errors
/// A value is not a number.
pub fn write(samples: &[Sample]) -> serde_json::Result<String> {
    let line = |sample: &Sample| serde_json::to_string(&(&sample.metric, &sample.unit, sample.value));
    samples.iter().map(|sample| Ok(line(sample)? + "\n")).collect()
}

fn read(answer: &[u8]) -> serde_json::Result<Vec<Sample>> {
    let rows = Deserializer::from_slice(answer).into_iter::<(String, String, f64)>();
    rows.map(|row| row.map(|(metric, unit, value)| Sample { metric, unit, value })).collect()
}

/// Pins the calling thread to the first core that it may use. Threads inherit this, so call it before any thread is spawned.
///
/// # Errors
/// The operating system refused.
pub fn pin_to_one_core() -> Result<(), Error> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let system = |error: rustix::io::Errno| Error::System { what: "pinning to one core", source: error.into() };
    let allowed = sched_getaffinity(None).map_err(system)?;
    let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).map_err(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reads_back() {
        let samples = vec![Sample::ns("a", 1.5), Sample { metric: "b".to_owned(), unit: "MiB".to_owned(), value: 2.0 }];
        assert_eq!(write(&samples).unwrap(), "[\"a\",\"ns\",1.5]\n[\"b\",\"MiB\",2.0]\n");
        assert_eq!(read(write(&samples).unwrap().as_bytes()).unwrap(), samples);
        assert!(read(b"nothing").is_err());
    }

    #[test]
    fn a_process_that_gives_no_samples_says_why() {
        let said = |script: &str| ask("chain", Command::new("sh").args(["-c", script])).unwrap_err().to_string();
        assert!(said("echo first >&2; echo last >&2; exit 3").ends_with("exit status: 3: last"));
        assert!(said("exit 3").ends_with("it said nothing"));
        assert!(said("true").ends_with("its answer is empty"));
        assert!(said("echo nothing").contains("cannot be read"));
        let error = ask("chain", &mut Command::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("the process measuring chain gave no samples: it could not be started"), "{error}");
    }

    #[test]
    fn a_process_that_takes_too_long_is_said_with_what_to_do() {
        let mut command = Command::new("sleep");
        let error = ask_within(Duration::from_millis(10), "chain", command.arg("60")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the process measuring chain gave no samples: it was stopped after 10ms, its answer not complete; \
             run \"sleep\" \"60\" by itself to see where it hangs"
        );
    }

    #[test]
    fn a_process_that_takes_too_long_is_killed() {
        let child = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().unwrap();
        let process = std::path::PathBuf::from(format!("/proc/{}", child.id()));
        assert!(output_within(Duration::from_millis(10), child).unwrap().is_none());
        let start = std::time::Instant::now();
        while process.exists() {
            assert!(start.elapsed() < Duration::from_secs(30), "{} is still there", process.display());
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_left_behind_with_the_pipes_open_is_not_waited_for() {
        let mut command = Command::new("sh");
        let child = command.args(["-c", "sleep 5 &"]).stdout(Stdio::piped()).spawn().unwrap();
        assert!(output_within(Duration::from_millis(10), child).unwrap().is_none());
    }
}

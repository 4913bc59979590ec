//! Child processes: this program again, for one run of one case, with its own peak of memory or on one core.
//!
//! A child gets the case by hidden arguments and answers with one line of JSON a sample on its standard output:
//! `["metric", "unit", value]`. Programs in other languages can answer so, too.

use std::process::{Command, Stdio};

use serde_json::Deserializer;

use crate::case::Sample;
use crate::error::Error;

/// The hidden argument that names the case.
pub const CHILD: &str = "--child";

/// This program again, told to measure the case of that name once; `ask` runs it.
///
/// # Errors
/// The operating system does not tell where this program lies.
pub fn again(case: &str, quick: bool, one_core: bool) -> Result<Command, Error> {
    let system = |source| Error::System { what: "finding this program", source };
    let mut command = Command::new(std::env::current_exe().map_err(system)?);
    command.args([CHILD, case]).args(quick.then_some("--quick")).args(one_core.then_some("--one-core"));
    Ok(command)
}

/// Runs `command`, which measures `case`, and reads its answer.
///
/// # Errors
/// The process could not be started, failed, or answered something else.
pub fn ask(case: &str, command: &mut Command) -> Result<Vec<Sample>, Error> {
    let failed = |reason: String| Error::Child { case: case.to_owned(), reason };
    let output = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| failed(format!("it could not be started: {error}")))?;
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

/// The answer of a child.
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

/// Pins this process to the first core that it may use. Threads inherit it, so it must come before the first of them.
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
}

//! Child processes: this program again, for one run of one case, with its own peak of memory or on one core.
//!
//! A child gets the case by hidden arguments and answers with one line of JSON on its standard output: a list of
//! `[metric, unit, value]`.

use std::process::{Command, Stdio};

use crate::case::{Case, Sample};
use crate::error::Error;

/// The hidden argument that names the case.
pub const CHILD: &str = "--child";

/// Runs `case` once in a process of its own.
///
/// # Errors
/// The process could not be started, failed, or answered something else.
pub fn measure(case: &Case, quick: bool, one_core: bool) -> Result<Vec<Sample>, Error> {
    let failed = |reason: String| Error::Child { case: case.name, reason };
    let program = std::env::current_exe().map_err(|error| failed(format!("no path to this program: {error}")))?;
    let mut command = Command::new(program);
    command.args([CHILD, case.name]).stdin(Stdio::null()).stderr(Stdio::inherit());
    command.args(quick.then_some("--quick")).args(one_core.then_some("--one-core"));
    let output = command.output().map_err(|error| failed(format!("it could not be started: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("it ended with {}", output.status)));
    }
    read(&output.stdout).map_err(|error| failed(format!("its answer cannot be read: {error}")))
}

/// The answer of a child.
///
/// # Errors
/// A value is not a number.
pub fn write(samples: &[Sample]) -> serde_json::Result<String> {
    let rows: Vec<_> = samples.iter().map(|sample| (&sample.metric, &sample.unit, sample.value)).collect();
    serde_json::to_string(&rows)
}

fn read(answer: &[u8]) -> serde_json::Result<Vec<Sample>> {
    let rows: Vec<(String, String, f64)> = serde_json::from_slice(answer)?;
    Ok(rows.into_iter().map(|(metric, unit, value)| Sample { metric, unit, value }).collect())
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
        assert_eq!(read(write(&samples).unwrap().as_bytes()).unwrap(), samples);
        assert!(read(b"nothing").is_err());
    }
}

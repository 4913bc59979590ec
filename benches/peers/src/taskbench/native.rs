//! Graphs on engines in other languages: a driver runs the graphs that it is sent, one at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::board::Graph;
use super::error::Error;
use crate::driver::Driver;

/// A driver that has been started. Dropping this ends its input and waits for its end, so that it does not run beside what is measured next.
pub struct Native {
    child: Child,
    /// `None` once the input has ended.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Drop for Native {
    fn drop(&mut self) {
        self.requests = None;
        // An error means that the driver cannot be waited for; its figures have been read already.
        let _ = self.child.wait();
    }
}

impl Native {
    /// Starts a driver that was built under the folder `drivers`.
    ///
    /// # Errors
    /// The driver could not be started.
    pub fn start(driver: &Driver, drivers: &Path) -> Result<Native, Error> {
        let mut command = driver.command(drivers)?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("its pipes are missing");
        let requests = Some(child.stdin.take().ok_or_else(missing)?);
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Native { child, requests, answers })
    }

    /// Runs a graph and returns the seconds that it took.
    ///
    /// # Errors
    /// The driver ended, because one of its tasks found a wrong input or for another reason, or its answer is no time.
    pub fn run(&mut self, graph: &Graph) -> Result<f64, Error> {
        let Graph { pattern, width, steps, iterations } = *graph;
        let request = format!("{} {width} {steps} {iterations}\n", pattern.name());
        // A driver that has ended refuses the request, and its last words say more than the broken pipe.
        let sent = self.requests.as_mut().is_some_and(|requests| requests.write_all(request.as_bytes()).is_ok());
        let mut answer = String::new();
        if sent {
            self.answers.read_line(&mut answer)?;
        }
        let failed = |reason| Error::Answer { pattern, width, reason };
        match answer.trim() {
            "" => Err(failed(self.last_words()?)),
            seconds => seconds.parse().map_err(|_| failed(format!("it answered `{seconds}`"))),
        }
    }

    /// Ends the input of a driver and returns its error: the line that says so, or else the last line of its standard error.
    fn last_words(&mut self) -> Result<String, Error> {
        self.requests = None;
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut said)?;
        }
        let mut lines = said.lines().filter(|line| !line.trim().is_empty());
        let error = lines.clone().find(|line| line.starts_with("error: ")).or_else(|| lines.next_back());
        Ok(error.unwrap_or("it ended and said nothing").to_owned())
    }
}
